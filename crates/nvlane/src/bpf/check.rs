//! `nvlane bpf check`: a program tried in user space, and shown to the verifier of the running kernel.

use super::trial::{self, Outcome};
use crate::admin::json_object;
use crate::cli::{BpfCheckArgs, ListFormat};
use anyhow::{Context, Result, bail};
use bpf::{MapDefinition, MapKind};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use ublk_bpf::Error;

/// What of a program goes wrong is told up to here; JSON has all of it.
const PROBLEMS_SHOWN: usize = 10;

/// Why one that the kernel takes runs in user space all the same.
const SEVERAL_PLACES: &str = "it may keep a block in several places (no NVLANE_ONE_PLACE)";

const ONLY_TRUSTED: &str = "`nvlane ublk add` runs it in user space unless --bpf kernel is given";

/// `nvlane bpf check`.
pub fn command(args: &BpfCheckArgs) -> Result<()> {
    let name = args.program.display();
    let object = fs::read(&args.program).with_context(|| format!("cannot read {name}"))?;
    let user = User::of(&object, args);
    let kernel =
        Kernel::of(ublk_bpf::check_loop(&object), ublk_bpf::check_trusted(&object, args.backends));
    let text = match args.output_format {
        ListFormat::Normal => format!("{name}: {}{}", user.text()?, kernel.text(&user)),
        ListFormat::Json => {
            let each = [
                ("program", args.program.to_string_lossy().into()),
                ("instructions", user.loaded.as_ref().map(|loaded| loaded.instructions).into()),
                ("maps", user.maps().into()),
                ("user", user.json()),
                ("kernel", kernel.json()),
                ("by_default", kernel.by_default(&user).into()),
            ];
            let all = json_object(
                each.map(|(name, value)| (name.to_owned(), value)).into_iter().collect(),
            );
            format!("{all:#}\n")
        }
    };
    io::stdout().write_all(text.as_bytes())?;
    // What is no object is nothing for the kernel, however it is asked.
    let of_kernel = user.loaded.as_ref().and_then(|_| kernel.wrong());
    let wrong: Vec<&str> = [user.wrong(), of_kernel].into_iter().flatten().collect();
    if wrong.is_empty() { Ok(()) } else { bail!("{name}: {}", wrong.join("; ")) }
}

/// What user space has to say of a program.
struct User {
    loaded: Option<Loaded>,
    /// What came of trying it, or why it could not be tried.
    outcome: Result<Outcome, String>,
    backends: u16,
}

/// What an object has in it.
struct Loaded {
    instructions: usize,
    maps: Vec<MapDefinition>,
}

impl User {
    /// Loads the program, and tries it.
    fn of(object: &[u8], args: &BpfCheckArgs) -> User {
        let backends = args.backends;
        let program = match bpf::load(object) {
            Ok(program) => program,
            Err(error) => {
                return User { loaded: None, outcome: Err(error.to_string()), backends };
            }
        };
        let (instructions, maps) = (program.instructions(), program.maps().to_vec());
        let sizes = vec![args.size >> trial::BLOCK_SHIFT; usize::from(backends)];
        let outcome = trial::run(program, &sizes).map_err(|error| format!("{error:#}"));
        User { loaded: Some(Loaded { instructions, maps }), outcome, backends }
    }

    /// Why it is not to run there, in short.
    fn wrong(&self) -> Option<&'static str> {
        match &self.outcome {
            Err(_) => Some("it is refused in user space"),
            Ok(outcome) if outcome.problems.is_empty() => None,
            Ok(_) => Some("requests would fail with an I/O error"),
        }
    }

    fn text(&self) -> Result<String> {
        let mut text = match &self.loaded {
            Some(loaded) => format!("{} instructions\n", loaded.instructions),
            None => "\n".to_owned(),
        };
        for map in self.loaded.iter().flat_map(|loaded| &loaded.maps) {
            let (entries, value) = (map.entries, map.value_bytes);
            writeln!(text, "  map {}: {entries} x {value} bytes, {:?}", map.name, map.kind)?;
        }
        let Outcome { requests, problems, read_ns, .. } = match &self.outcome {
            Ok(outcome) => outcome,
            Err(why) => {
                writeln!(text, "user space: refused\n  {why}")?;
                return Ok(text);
            }
        };
        let tried = format!("{requests} requests tried on {} volumes", self.backends);
        match problems.len() {
            0 => {
                writeln!(text, "user space: taken; {tried}; a read of 4 KiB takes {read_ns:.0} ns")?
            }
            many => writeln!(text, "user space: {many} of {tried} would fail:")?,
        }
        for problem in problems.iter().take(PROBLEMS_SHOWN) {
            writeln!(text, "  {problem}")?;
        }
        Ok(text)
    }

    fn maps(&self) -> Vec<Value> {
        let maps = self.loaded.iter().flat_map(|loaded| &loaded.maps).map(|map| {
            let kind = match map.kind {
                _ if map.is_variables => "variables",
                MapKind::Array => "array",
                MapKind::PerCoreArray => "per-core array",
                MapKind::Hash => "hash",
            };
            let (entries, bytes) = (map.entries, map.value_bytes);
            json!({ "name": map.name, "kind": kind, "entries": entries, "value_bytes": bytes })
        });
        maps.collect()
    }

    fn json(&self) -> Value {
        match &self.outcome {
            Err(why) => {
                json!({ "verdict": "refused", "reason": why, "requests": 0, "problems": [], "read_ns": null })
            }
            Ok(Outcome { requests, problems, read_ns, .. }) => {
                let is_taken = problems.is_empty();
                json!({
                    "verdict": if is_taken { "taken" } else { "fails" },
                    "reason": null,
                    "requests": requests,
                    "problems": problems,
                    "read_ns": is_taken.then_some(read_ns),
                })
            }
        }
    }
}

/// What the kernel's side has to say of it.
struct Kernel {
    /// Its loop is not ours, or it reaches for more than programs may: only `--bpf kernel` has it there.
    foreign: Option<String>,
    /// What the kernel makes of the object as it is.
    verdict: Verdict,
}

enum Verdict {
    Taken,
    Refused(String),
    NotAsked(String),
    /// Nor would be the user that runs this: another may be.
    Forbidden(String),
}

impl Verdict {
    fn words(&self) -> (&'static str, Option<&str>) {
        match self {
            Verdict::Taken => ("ok", None),
            Verdict::Refused(why) => ("refused", Some(why)),
            Verdict::NotAsked(why) | Verdict::Forbidden(why) => ("not asked", Some(why)),
        }
    }

    fn text(&self) -> String {
        match self {
            Verdict::Taken => "ok".to_owned(),
            Verdict::Refused(why) => format!("refused\n  {}", why.replace('\n', "\n  ")),
            Verdict::NotAsked(why) | Verdict::Forbidden(why) => format!("not asked: {why}"),
        }
    }

    fn json(&self) -> Value {
        let (verdict, reason) = self.words();
        json!({ "verdict": verdict, "reason": reason })
    }
}

impl Kernel {
    /// Of whether the loop is ours, and of what the kernel says to the object as it is.
    fn of(ours: Result<(), Error>, taken: Result<(), Error>) -> Kernel {
        let verdict = match taken {
            Ok(()) => Verdict::Taken,
            Err(Error::Refused(why) | Error::Volume(why)) => Verdict::Refused(why),
            Err(error @ Error::Permission) => Verdict::Forbidden(error.to_string()),
            Err(error) => Verdict::NotAsked(error.to_string()),
        };
        Kernel { foreign: ours.err().map(|error| error.to_string()), verdict }
    }

    /// Why it is not to run there, in short.
    fn wrong(&self) -> Option<&'static str> {
        match (&self.foreign, &self.verdict) {
            (_, Verdict::Refused(_)) => Some("the kernel does not take it"),
            (Some(_), _) => Some("the kernel is not given it unless --bpf kernel trusts it"),
            (None, _) => None,
        }
    }

    fn text(&self, user: &User) -> String {
        let verdict = self.verdict.text();
        match &self.foreign {
            Some(why) => {
                format!("kernel: refused by default: {why}\nwith --bpf kernel: {verdict}\n")
            }
            None if self.stays_out(user) => {
                format!("kernel: {verdict}\n{ONLY_TRUSTED}: {SEVERAL_PLACES}\n")
            }
            None => format!("kernel: {verdict}\n"),
        }
    }

    /// Whether a program runs in user space all the same where the kernel takes it, here or elsewhere.
    fn stays_out(&self, user: &User) -> bool {
        let may_be_taken = !matches!(self.verdict, Verdict::Refused(_)) && self.foreign.is_none();
        may_be_taken && user.outcome.as_ref().is_ok_and(|outcome| !outcome.has_one_place)
    }

    /// Where it would run by default, over plain files and block devices.
    fn by_default(&self, user: &User) -> Option<&'static str> {
        match (&user.outcome, &self.verdict, &self.foreign) {
            (Err(_), ..) => None,
            (Ok(_), Verdict::Taken, None) if !self.stays_out(user) => Some("kernel"),
            (Ok(_), Verdict::Forbidden(_), None) if !self.stays_out(user) => None,
            (Ok(_), ..) => Some("user"),
        }
    }

    fn json(&self) -> Value {
        let Some(why) = &self.foreign else {
            let mut all = self.verdict.json();
            all["trusted"] = Value::Null;
            return all;
        };
        json!({ "verdict": "refused by default", "reason": why, "trusted": self.verdict.json() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(has_one_place: bool) -> User {
        let outcome = Outcome { requests: 52, problems: Vec::new(), read_ns: 20.0, has_one_place };
        User { loaded: None, outcome: Ok(outcome), backends: 2 }
    }

    fn foreign() -> Result<(), Error> {
        Err(Error::Foreign("nvlane_loop_step is not the one of this version".into()))
    }

    #[test]
    fn another_compilers_object_is_refused_by_default_and_asked_for_all_the_same() {
        for (taken, said, wrong) in [
            (Ok(()), "ok", "unless --bpf kernel trusts it"),
            (Err(Error::Kernel), "not asked: this kernel", "unless --bpf kernel trusts it"),
            (Err(Error::Refused("R1\nR2".into())), "refused\n  R1\n  R2\n", "does not take it"),
        ] {
            let kernel = Kernel::of(foreign(), taken);
            let text = kernel.text(&user(true));
            assert!(text.starts_with("kernel: refused by default: nvlane_loop_step"), "{text}");
            assert!(text.contains(&format!("\nwith --bpf kernel: {said}")), "{text}");
            assert!(kernel.wrong().expect("it is refused").contains(wrong));
            assert_eq!(kernel.by_default(&user(true)), Some("user"));
        }
        let json = Kernel::of(foreign(), Ok(())).json();
        assert_eq!(json["verdict"], "refused by default");
        assert_eq!(json["trusted"], json!({ "verdict": "ok", "reason": null }));
    }

    #[test]
    fn where_it_would_run_is_not_known_to_who_may_not_ask() {
        let kernel = Kernel::of(Ok(()), Err(Error::Permission));
        assert_eq!((kernel.by_default(&user(true)), kernel.wrong()), (None, None));
        assert_eq!(kernel.by_default(&user(false)), Some("user"));
        let kernel = Kernel::of(Ok(()), Err(Error::Kernel));
        assert_eq!(kernel.by_default(&user(true)), Some("user"));
    }

    #[test]
    fn what_cannot_be_shared_with_user_space_is_refused() {
        let kernel = Kernel::of(Ok(()), Err(Error::Volume("map hash is no array".into())));
        assert_eq!(kernel.text(&user(true)), "kernel: refused\n  map hash is no array\n");
        assert_eq!(kernel.wrong(), Some("the kernel does not take it"));
    }

    #[test]
    fn a_program_of_several_places_is_said_to_stay_in_user_space() {
        let kernel = Kernel::of(Ok(()), Ok(()));
        assert_eq!((kernel.text(&user(true)), kernel.wrong()), ("kernel: ok\n".into(), None));
        assert_eq!(kernel.by_default(&user(true)), Some("kernel"));
        let text = kernel.text(&user(false));
        assert!(text.starts_with("kernel: ok\n`nvlane ublk add` runs it in user space"), "{text}");
        assert_eq!(kernel.by_default(&user(false)), Some("user"));
        // A kernel that was not asked is no mistake of the program's.
        let kernel = Kernel::of(Ok(()), Err(Error::Kernel));
        assert_eq!(kernel.wrong(), None);
        assert_eq!(kernel.by_default(&user(true)), Some("user"));
        assert_eq!(kernel.text(&user(true)).lines().count(), 1);
        assert_eq!(kernel.text(&user(false)).lines().count(), 2);
    }
}
