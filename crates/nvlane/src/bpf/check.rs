//! `nvlane bpf check`: a program tried in user space, and shown to the verifier of the running kernel.

use super::trial::{self, Outcome};
use crate::admin::json_object;
use crate::cli::{BpfCheckArgs, ListFormat};
use crate::stdout;
use anyhow::{Context, Result, bail};
use bpf::{MapDefinition, MapKind};
use serde_json::{Value, json};
use std::fmt::Write as _;
use ublk_bpf::Error;

/// What of a program goes wrong is told up to here; JSON has all of it.
const PROBLEMS_SHOWN: usize = 10;

/// Why one that the kernel takes runs in user space all the same.
const SEVERAL_PLACES: &str = "it may keep a block in several places (no NVLANE_ONE_PLACE)";

const ONLY_INSISTED: &str = "`nvlane ublk add` runs it in user space unless --bpf kernel is given";

/// `nvlane bpf check`.
pub fn command(args: &BpfCheckArgs) -> Result<()> {
    let name = args.program.display();
    let object = volume::read_program_waiting(&args.program);
    let object = object.with_context(|| format!("cannot read {name}"))?;
    let user = User::of(&object, args);
    let kernel = Kernel::of(ublk_bpf::check(&object, args.backends, &[true, false]));
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
    let printed = stdout::write(text);
    // What is no object is nothing for the kernel, however it is asked.
    let of_kernel = user.loaded.as_ref().and_then(|_| kernel.wrong());
    let wrong: Vec<&str> = [user.wrong(), of_kernel].into_iter().flatten().collect();
    // What is wrong is so, whoever reads of it.
    if wrong.is_empty() { printed } else { bail!("{name}: {}", wrong.join("; ")) }
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
        let outcome = trial::run(program, &sizes).map_err(|error| crate::one_line(&error));
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
enum Kernel {
    Taken,
    /// By the kernel, or by us: it reaches for more than programs may, or was compiled otherwise.
    Refused(String),
    NotAsked(String),
    /// Nor would be the user that runs this: another may be.
    Forbidden(String),
}

impl Kernel {
    fn of(taken: Result<(), Error>) -> Kernel {
        match taken {
            Ok(()) => Kernel::Taken,
            Err(Error::Refused(why) | Error::Volume(why)) => Kernel::Refused(why),
            Err(
                error @ (Error::Foreign(_) | Error::Link(_) | Error::NoRoute(_) | Error::OldLoop),
            ) => Kernel::Refused(error.to_string()),
            Err(error @ Error::Permission) => Kernel::Forbidden(error.to_string()),
            Err(error) => Kernel::NotAsked(error.to_string()),
        }
    }

    /// Why it is not to run there, in short.
    fn wrong(&self) -> Option<&'static str> {
        matches!(self, Kernel::Refused(_)).then_some("the kernel does not take it")
    }

    fn text(&self, user: &User) -> String {
        let mut text = match self {
            Kernel::Taken => "kernel: ok\n".to_owned(),
            Kernel::Refused(why) => format!("kernel: refused\n  {}\n", why.replace('\n', "\n  ")),
            Kernel::NotAsked(why) | Kernel::Forbidden(why) => format!("kernel: not asked: {why}\n"),
        };
        if self.stays_out(user) {
            text += &format!("{ONLY_INSISTED}: {SEVERAL_PLACES}\n");
        }
        text
    }

    /// Whether a program runs in user space all the same where the kernel takes it, here or elsewhere.
    fn stays_out(&self, user: &User) -> bool {
        let may_be_taken = !matches!(self, Kernel::Refused(_));
        may_be_taken && user.outcome.as_ref().is_ok_and(|outcome| !outcome.has_one_place)
    }

    /// Where it would run by default, over plain files and block devices.
    fn by_default(&self, user: &User) -> Option<&'static str> {
        match (&user.outcome, self) {
            (Err(_), _) => None,
            (Ok(_), Kernel::Taken) if !self.stays_out(user) => Some("kernel"),
            (Ok(_), Kernel::Forbidden(_)) if !self.stays_out(user) => None,
            (Ok(_), _) => Some("user"),
        }
    }

    fn json(&self) -> Value {
        let (verdict, reason) = match self {
            Kernel::Taken => ("ok", None),
            Kernel::Refused(why) => ("refused", Some(why)),
            Kernel::NotAsked(why) | Kernel::Forbidden(why) => ("not asked", Some(why)),
        };
        json!({ "verdict": verdict, "reason": reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(has_one_place: bool) -> User {
        let outcome = Outcome { requests: 52, problems: Vec::new(), read_ns: 20.0, has_one_place };
        User { loaded: None, outcome: Ok(outcome), backends: 2 }
    }

    #[test]
    fn an_object_that_reaches_for_more_is_refused() {
        let kernel = Kernel::of(Err(Error::Foreign("nvlane_route uses nvlane_queues".into())));
        let text = kernel.text(&user(false));
        assert!(text.starts_with("kernel: refused\n  nvlane_route uses nvlane_queues: "), "{text}");
        assert_eq!((text.lines().count(), kernel.by_default(&user(true))), (2, Some("user")));
        assert_eq!(kernel.wrong(), Some("the kernel does not take it"));
        assert_eq!(kernel.json()["verdict"], "refused");
        for error in [Error::OldLoop, Error::NoRoute("f"), Error::Link("no types".into())] {
            assert_eq!(Kernel::of(Err(error)).by_default(&user(true)), Some("user"));
        }
    }

    #[test]
    fn where_it_would_run_is_not_known_to_who_may_not_ask() {
        let kernel = Kernel::of(Err(Error::Permission));
        assert_eq!((kernel.by_default(&user(true)), kernel.wrong()), (None, None));
        assert_eq!(kernel.by_default(&user(false)), Some("user"));
        let kernel = Kernel::of(Err(Error::Kernel));
        assert_eq!(kernel.by_default(&user(true)), Some("user"));
    }

    #[test]
    fn what_cannot_be_shared_with_user_space_is_refused() {
        let kernel = Kernel::of(Err(Error::Volume("map hash is no array".into())));
        assert_eq!(kernel.text(&user(true)), "kernel: refused\n  map hash is no array\n");
        assert_eq!(kernel.wrong(), Some("the kernel does not take it"));
    }

    #[test]
    fn a_program_of_several_places_is_said_to_stay_in_user_space() {
        let kernel = Kernel::of(Ok(()));
        assert_eq!((kernel.text(&user(true)), kernel.wrong()), ("kernel: ok\n".into(), None));
        assert_eq!(kernel.by_default(&user(true)), Some("kernel"));
        let text = kernel.text(&user(false));
        assert!(text.starts_with("kernel: ok\n`nvlane ublk add` runs it in user space"), "{text}");
        assert_eq!(kernel.by_default(&user(false)), Some("user"));
        // A kernel that was not asked is no mistake of the program's.
        let kernel = Kernel::of(Err(Error::Kernel));
        assert_eq!(kernel.wrong(), None);
        assert_eq!(kernel.by_default(&user(true)), Some("user"));
        assert_eq!(kernel.text(&user(true)).lines().count(), 1);
        assert_eq!(kernel.text(&user(false)).lines().count(), 2);
    }
}
