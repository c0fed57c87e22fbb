//! Scripts that fail on purpose, each in a way of its own: a session that does not see it passes whatever it runs.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use super::machine::{self, Machine};
use super::session::{Script, Seat, Verdict};
use crate::lanes::{Count, Output};

/// How long what is to end by itself may take, and what is to be stopped.
const LIMIT: Duration = Duration::from_secs(90);
const LIMIT_OF_HANGING: Duration = Duration::from_secs(2);

/// A script, its limit, what is to become of it, and what its log has to have.
struct Case {
    name: &'static str,
    text: &'static str,
    limit: Duration,
    failure: Option<&'static str>,
    /// Of the log.
    said: &'static str,
}

/// What the kernel says where one of its own checks fails gets into its log by /dev/kmsg.
const CASES: [Case; 6] = [
    Case {
        name: "on_purpose_exits",
        text: "echo said before\nexit 3\n",
        limit: LIMIT,
        failure: Some("exit status 3"),
        said: "said before\n",
    },
    Case {
        name: "on_purpose_complains",
        text: "echo '<4>WARNING: CPU: 0 PID: 1 at on/purpose.c:1' >/dev/kmsg\n",
        limit: LIMIT,
        failure: Some("the guest's kernel complained"),
        said: "FAILED kernel: ",
    },
    Case {
        name: "on_purpose_is_at_fault",
        text: "echo '<4>general protection fault: 0000 [#1] SMP' >/dev/kmsg\n",
        limit: LIMIT,
        failure: Some("the guest's kernel complained"),
        said: "FAILED kernel: ",
    },
    Case {
        name: "on_purpose_lacks",
        text: "echo this kernel has none\nexit 77\n",
        limit: LIMIT,
        failure: None,
        said: "this kernel has none\n",
    },
    // After those before: their complaints are over.
    Case {
        name: "on_purpose_may_complain",
        text: "# kernel says: at on/purpose\\.c:[0-9]+\n\
               echo '<4>WARNING: CPU: 0 PID: 1 at on/purpose.c:1' >/dev/kmsg\n",
        limit: LIMIT,
        failure: None,
        said: "",
    },
    Case {
        name: "on_purpose_hangs",
        text: "sleep 600\n",
        limit: LIMIT_OF_HANGING,
        failure: Some("stopped at its time limit"),
        said: "",
    },
];

/// Runs them in the lane's guest, and counts those that ended as they have to.
pub fn run(seat: &mut Seat, machine: &Machine, output: &mut Output) -> Result<Count> {
    let folder = machine::folder_of_this_process("on_purpose")?;
    let mut count = Count::NONE;
    for case in &CASES {
        let path = folder.join(case.name).with_extension("sh");
        fs::write(&path, case.text).with_context(|| path.display().to_string())?;
        let script = case.script(path);
        seat.prepare(machine, script.devices_there(), output)?;
        let mut verdict = seat.run_to_fail(&script)?;
        if verdict.died {
            output.say("the guest died: once more, in another");
            seat.prepare(machine, script.devices_there(), output)?;
            verdict = seat.run_to_fail(&script)?;
        }
        let is_met = case.is_met(&verdict);
        *(if is_met { &mut count.passed } else { &mut count.failed }) += 1;
        let became = verdict.failure.as_deref().unwrap_or("passed");
        output.say(&format!("{}: {became}", case.name));
        if !is_met {
            let wanted = case.failure.unwrap_or("passed");
            output.say(&verdict.log);
            output.blame(&format!("{}: {became}, wanted: {wanted} {:?}", case.name, case.said));
        }
    }
    fs::remove_dir_all(&folder)?;
    Ok(count)
}

impl Case {
    fn script(&self, path: std::path::PathBuf) -> Script {
        Script {
            name: self.name.to_owned(),
            path,
            limit: self.limit,
            full_only: false,
            newest_only: false,
            devices: None,
            has_example: false,
            has_tls: false,
            processors: 1,
        }
    }

    fn is_met(&self, verdict: &Verdict) -> bool {
        verdict.failure.as_deref() == self.failure && verdict.log.contains(self.said)
    }
}
