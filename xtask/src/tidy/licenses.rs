//! What `deny.toml` says of licences and bans, held against the crates of a build on this machine. Advisories are left to
//! `cargo deny`, since they change.

use std::iter::Peekable;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Complaint, Tree, complain};
use crate::process::{capture, cargo};

/// Every crate is under a licence of the list, is not banned, and has a version.
pub(super) fn licenses(tree: &Tree, complaints: &mut Vec<Complaint>) -> Result<()> {
    let path = Path::new("deny.toml");
    let deny: Value = toml::from_str(&tree.text(path)?.unwrap_or_default())?;
    let words = ["metadata", "--locked", "--all-features", "--format-version=1"];
    let platform = format!("--filter-platform={}", platform()?);
    let said = capture(cargo()?.args(words).arg(platform))?;
    let found: Value = serde_json::from_str(&said)?;
    for package in found["packages"].as_array().context("cargo metadata has no packages")? {
        let refusals = refusals(&deny, package).into_iter();
        refusals.for_each(|what| complain(complaints, path, None, what));
    }
    Ok(())
}

/// The target triple of this machine.
fn platform() -> Result<String> {
    let told = capture(Command::new("rustc").arg("-vV"))?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not tell its host")?.to_owned())
}

/// What is wrong with a package, as `cargo metadata` describes it.
fn refusals(deny: &Value, package: &Value) -> Vec<String> {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let (name, license) = (&package["name"], package["license"].as_str().unwrap_or_default());
    let mut allowed = list(&deny["licenses"]["allow"]);
    let exceptions = list(&deny["licenses"]["exceptions"]).into_iter();
    allowed.extend(exceptions.filter(|it| it["crate"] == *name).flat_map(|it| list(&it["allow"])));
    let mut found = Vec::new();
    if !is_met(license, &|id| allowed.iter().any(|it| it == id)) {
        found.push(format!("{name} is under \"{license}\", which is not allowed"));
    }
    if list(&deny["bans"]["deny"]).iter().any(|banned| banned["name"] == *name) {
        found.push(format!("{name} is banned"));
    }
    let ours = list(&package["dependencies"]).into_iter().filter(|_| package["source"].is_null());
    let any = ours.filter(|it| it["req"] == "*" && it["path"].is_null());
    found.extend(any.map(|it| format!("{name} takes any version of {}", it["name"])));
    found
}

/// Whether the licences that are allowed are enough for an SPDX expression, or for one of the old form `A/B`.
fn is_met(expression: &str, allowed: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    any_of(&mut words, allowed) == Some(true) && words.next().is_none()
}

type Words<'a> = Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(words: &mut Words<'_>, allowed: &dyn Fn(&str) -> bool) -> Option<bool> {
    let mut met = all_of(words, allowed)?;
    while words.next_if_eq(&"OR").is_some() {
        met |= all_of(words, allowed)?;
    }
    Some(met)
}

fn all_of(words: &mut Words<'_>, allowed: &dyn Fn(&str) -> bool) -> Option<bool> {
    let mut met = true;
    loop {
        met &= match words.next()? {
            "(" => any_of(words, allowed).filter(|_| words.next() == Some(")"))?,
            id if words.next_if_eq(&"WITH").is_some() => {
                allowed(&format!("{id} WITH {}", words.next()?))
            }
            id => allowed(id),
        };
        if words.next_if_eq(&"AND").is_none() {
            return Some(met);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn expressions_are_met_by_what_is_allowed() {
        let allowed =
            |id: &str| ["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].contains(&id);
        for (expression, met) in [
            ("MIT", true),
            ("MIT/Apache-2.0", true),
            ("Apache-2.0 OR MIT", true),
            ("MIT AND Zlib OR Zlib", false),
            ("(Zlib OR MIT) AND Unicode-3.0", true),
            ("Zlib AND (MIT OR Unicode-3.0)", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH LLVM-exception", false),
            ("(MIT", false),
            ("MIT MIT", false),
            ("MIT OR", false),
            ("", false),
        ] {
            assert_eq!(is_met(expression, &allowed), met, "{expression}");
        }
    }

    #[test]
    fn a_license_a_ban_and_a_missing_version_are_told() {
        let deny = json!({
            "licenses": { "allow": ["MIT"], "exceptions": [{ "crate": "b", "allow": ["Zlib"] }] },
            "bans": { "deny": [{ "name": "c" }] },
        });
        let of = |name: &str, license: &str, dependency: Value| {
            let package = json!({ "name": name, "license": license, "dependencies": [dependency] });
            refusals(&deny, &package).len()
        };
        let plain = json!({ "name": "d", "req": "^1" });
        assert_eq!(of("a", "MIT", plain.clone()), 0);
        assert_eq!(of("a", "Zlib", plain.clone()), 1);
        assert_eq!(of("b", "Zlib", plain.clone()), 0);
        assert_eq!(of("c", "MIT", plain), 1);
        assert_eq!(of("a", "MIT", json!({ "name": "d", "req": "*" })), 1);
        assert_eq!(of("a", "MIT", json!({ "name": "d", "req": "*", "path": "d" })), 0);
    }
}
