//! `nvlane jobs wait`: until a job has ended, though the daemon may be started again meanwhile.

use super::{find, read};
use crate::control::client::{Client, ClientError};
use crate::control::method::{Job, JobState};
use crate::copy::line::Line;
use anyhow::{Result, bail};
use serde_json::json;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How often the job is looked at.
const INTERVAL: Duration = Duration::from_millis(200);
/// How long nobody may answer: the jobs of a daemon that is started again go on.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// The daemon is stopping, or has no room for another client.
const REFUSED: i32 = -32005;

/// Waits for a job of the daemon at `socket`, to which `client` is connected.
pub fn wait(socket: &Path, client: Client, id: u64) -> Result<Job> {
    let mut client = Some(client);
    let mut answered = Instant::now();
    let mut line: Option<Line> = None;
    loop {
        match look(&mut client, socket) {
            Ok(jobs) => {
                answered = Instant::now();
                let job = find(read(jobs)?, id)?;
                if !is_at_work(&job) {
                    drop(line);
                    return ended(job);
                }
                let line = line.get_or_insert_with(Line::new);
                line.update(job.phase, &job.counts, Some(job.bytes_per_second));
            }
            Err(error) if is_away(&error) && answered.elapsed() < AWAY_MAX => client = None,
            Err(error) => return Err(error.into()),
        }
        thread::sleep(INTERVAL);
    }
}

/// What jobs there are.
fn look(client: &mut Option<Client>, socket: &Path) -> Result<serde_json::Value, ClientError> {
    let client = match client {
        Some(client) => client,
        None => client.insert(Client::connect(socket)?),
    };
    client.call("job_list", json!({}))
}

/// Whether the daemon may be there again in a while.
fn is_away(error: &ClientError) -> bool {
    match error {
        ClientError::Connect { .. } | ClientError::Broken { .. } => true,
        ClientError::Failed(failure) => failure.code == REFUSED,
    }
}

/// A job that was waited for.
fn ended(job: Job) -> Result<Job> {
    match job.state {
        JobState::Failed => bail!("job {}: {}", job.id, job.error.unwrap_or_default()),
        JobState::Cancelled => match job.error {
            Some(error) => bail!("job {} was cancelled: {error}", job.id),
            None => bail!("job {} was cancelled", job.id),
        },
        JobState::Paused => bail!("job {} is paused", job.id),
        _ => Ok(job),
    }
}

fn is_at_work(job: &Job) -> bool {
    matches!(job.state, JobState::Running | JobState::Pausing | JobState::Cancelling)
}
