//! `nvlane jobs wait`: until a job has ended, though the daemon may be started again meanwhile.

use super::{find, read};
use crate::control::client::{Client, ClientError};
use crate::control::method::{Job, JobState};
use crate::control::protocol::REFUSED;
use crate::copy::line::Line;
use anyhow::{Result, bail, ensure};
use serde_json::json;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How often the job is looked at.
const INTERVAL: Duration = Duration::from_millis(200);
/// How long nobody may answer: the jobs of a daemon that is started again go on.
const AWAY_MAX: Duration = Duration::from_secs(300);

/// Waits until a job of the daemon at `socket`, to which `client` is connected, is not at work any more. An answer may
/// take `patience`: a daemon that gives none is away.
pub fn wait(socket: &Path, client: Client, id: u64, patience: Duration) -> Result<Job> {
    let mut client = Some(client);
    // When it did not answer first since it last did.
    let mut away: Option<Instant> = None;
    // When the job was added, once that is known.
    let mut added: Option<Option<u64>> = None;
    let mut line: Option<Line> = None;
    loop {
        match look(&mut client, socket, patience) {
            Ok(jobs) => {
                away = None;
                let job = find(read(jobs)?, id)?;
                ensure!(
                    *added.get_or_insert(job.created_time_seconds) == job.created_time_seconds,
                    "job {id} is another one by now: the one that was waited for is forgotten"
                );
                if !is_at_work(&job) {
                    return Ok(job);
                }
                let line = line.get_or_insert_with(|| Line::new(false));
                line.update(job.phase, &job.counts, Some(job.bytes_per_second));
            }
            Err(error) if is_away(&error) => {
                client = None;
                let since = *away.get_or_insert_with(|| {
                    line = None;
                    tell(&error);
                    Instant::now()
                });
                if since.elapsed() >= AWAY_MAX {
                    return Err(error.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
        thread::sleep(INTERVAL);
    }
}

/// Says why nothing is heard of the job, once each time.
fn tell(error: &ClientError) {
    let minutes = AWAY_MAX.as_secs() / 60;
    // Who does not read it waits all the same.
    let _ = writeln!(
        io::stderr(),
        "nvlane: {error}: the daemon is away; it is waited for, {minutes} minutes at most"
    );
}

/// What jobs there are.
fn look(
    client: &mut Option<Client>,
    socket: &Path,
    patience: Duration,
) -> Result<serde_json::Value, ClientError> {
    let client = match client {
        Some(client) => client,
        None => client.insert(Client::connect(socket)?.patient_for(patience)),
    };
    client.call("job_list", json!({}))
}

/// Whether the daemon may be there again in a while.
fn is_away(error: &ClientError) -> bool {
    match error {
        ClientError::Connect { source, .. } => source.kind() != ErrorKind::PermissionDenied,
        ClientError::Silent { .. } | ClientError::Broken { .. } => true,
        ClientError::Nonsense { .. } => false,
        ClientError::Failed(failure) => failure.code == REFUSED,
    }
}

/// Whether a job that was waited for is done; otherwise what has become of it.
pub fn outcome(job: &Job) -> Result<()> {
    let id = job.id;
    match (job.state, &job.error) {
        (JobState::Failed, error) => bail!("job {id}: {}", error.as_deref().unwrap_or("it failed")),
        (JobState::Cancelled, Some(error)) => bail!("job {id} was cancelled: {error}"),
        (JobState::Cancelled, None) => bail!("job {id} was cancelled"),
        (JobState::Paused, _) => bail!("job {id} is paused"),
        _ => Ok(()),
    }
}

fn is_at_work(job: &Job) -> bool {
    matches!(job.state, JobState::Running | JobState::Pausing | JobState::Cancelling)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::protocol::Failure;

    #[test]
    fn only_who_may_come_back_is_waited_for() {
        let connect =
            |kind: ErrorKind| ClientError::Connect { path: "s".into(), source: kind.into() };
        let (path, problem) = ("s".into(), "no JSON".into());
        let refused = Failure::refused("the daemon is stopping");
        for (error, is) in [
            (connect(ErrorKind::NotFound), true),
            (connect(ErrorKind::ConnectionRefused), true),
            (connect(ErrorKind::PermissionDenied), false),
            (ClientError::Silent { path: "s".into(), patience: AWAY_MAX }, true),
            (ClientError::Broken { path: "s".into(), problem: "hung up".into() }, true),
            (ClientError::Nonsense { path, problem }, false),
            (ClientError::Failed(refused), true),
            (ClientError::Failed(Failure::method("job_list")), false),
        ] {
            assert_eq!(is_away(&error), is, "{error}");
        }
    }
}
