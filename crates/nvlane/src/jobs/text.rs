//! Jobs in words.

use crate::admin::columns;
use crate::control::method::{Job, JobState};
use crate::copy::report::{means, setbacks};
use crate::copy::shared::Phase;
use crate::copy::spec::Part;
use crate::size;
use crate::when;

fn state(job: &Job) -> &'static str {
    match (job.state, job.phase) {
        (JobState::Running, Phase::Copying) => "copying",
        (JobState::Running, Phase::Flushing) => "flushing",
        (JobState::Running, Phase::Verifying) => "comparing",
        (state, _) => state.name(),
    }
}

fn names(parts: &[Part]) -> String {
    parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// How much is done of what it is doing, copying or comparing.
pub fn done(job: &Job) -> u64 {
    if is_comparing(job) { job.counts.verified_bytes } else { job.counts.done_bytes }
}

/// Whether everything is copied, and is being compared.
pub fn is_comparing(job: &Job) -> bool {
    job.state == JobState::Running && job.phase == Phase::Verifying
}

/// Seconds that are left of that, at the rate that it has now.
fn left(job: &Job) -> Option<u64> {
    let rest = job.counts.total_bytes.saturating_sub(done(job));
    (job.state == JobState::Running && job.bytes_per_second > 0)
        .then(|| rest / job.bytes_per_second)
}

/// All of them, a line each.
pub fn table(jobs: &[Job]) -> String {
    if jobs.is_empty() {
        return "there are no jobs\n".to_owned();
    }
    let head = ["Job", "State", "Done", "Of", "Rate", "Left", "Throttle", "Sources", "Targets"];
    let rows: Vec<[String; 9]> = jobs
        .iter()
        .map(|job| {
            let rate = match job.state {
                JobState::Running => format!("{}/s", size::rough(job.bytes_per_second)),
                _ => String::new(),
            };
            [
                job.id.to_string(),
                state(job).to_owned(),
                size::rough(done(job)),
                size::rough(job.counts.total_bytes),
                rate,
                left(job).map(|seconds| format!("{seconds} s")).unwrap_or_default(),
                job.options.throttle.to_string(),
                names(&job.sources),
                names(&job.targets),
            ]
        })
        .collect();
    columns(&head, &rows)
}

/// Which jobs are forgotten.
pub fn cleared(ids: &[u64]) -> String {
    match ids {
        [] => "no job has ended\n".to_owned(),
        [id] => format!("job {id} is forgotten\n"),
        _ => format!("{} jobs are forgotten\n", ids.len()),
    }
}

/// One, a line for each of what is known.
pub fn one(job: &Job) -> String {
    let counts = &job.counts;
    let of_all = |bytes: u64| {
        let percent = u128::from(bytes) * 100 / u128::from(counts.total_bytes.max(1));
        format!("{} of {} ({percent} %)", size::rough(bytes), size::rough(counts.total_bytes))
    };
    let mut rows = vec![
        ("job", job.id.to_string()),
        ("state", state(job).to_owned()),
        ("sources", names(&job.sources)),
        ("targets", names(&job.targets)),
        ("done", of_all(counts.done_bytes)),
        ("durable", size::rough(counts.durable_bytes)),
        ("means", means(counts)),
        ("throttle", job.options.throttle.to_string()),
    ];
    if is_comparing(job) {
        rows.push(("compared", of_all(counts.verified_bytes)));
    }
    if job.state == JobState::Running {
        rows.push(("rate", format!("{}/s", size::rough(job.bytes_per_second))));
    }
    rows.extend(left(job).map(|seconds| ("left", format!("{seconds} s"))));
    rows.extend(job.checksum.as_ref().map(|sum| ("compared", format!("CRC-64/NVME {sum}"))));
    rows.extend(setbacks(counts).map(|text| ("setbacks", text)));
    let times = [
        ("created", job.created_time_seconds),
        ("started", job.started_time_seconds),
        ("ended", job.ended_time_seconds),
    ];
    rows.extend(times.into_iter().filter_map(|(what, time)| Some((what, when::utc(time?)))));
    rows.extend(job.error.as_ref().map(|error| ("error", error.clone())));
    rows.iter().map(|(key, value)| format!("{key:10}{value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::shared::Counts;

    fn job(phase: Phase) -> Job {
        let counts = Counts {
            total_bytes: 8 << 20,
            done_bytes: if phase == Phase::Copying { 2 << 20 } else { 8 << 20 },
            verified_bytes: if phase == Phase::Verifying { 4 << 20 } else { 0 },
            ..Counts::default()
        };
        Job {
            id: 1,
            state: JobState::Running,
            phase,
            error: None,
            sources: Vec::new(),
            targets: Vec::new(),
            options: Default::default(),
            counts,
            bytes_per_second: 1 << 20,
            checksum: None,
            created_time_seconds: None,
            started_time_seconds: Some(0),
            ended_time_seconds: None,
        }
    }

    #[test]
    fn what_is_left_is_of_what_it_is_doing() {
        let (copying, comparing) = (job(Phase::Copying), job(Phase::Verifying));
        assert!(one(&copying).contains("left      6 s"), "{}", one(&copying));
        assert!(one(&copying).contains("started   1970-01-01 00:00:00 UTC"), "{}", one(&copying));
        let text = one(&comparing);
        for part in [
            "state     comparing",
            "8 MiB of 8 MiB (100 %)",
            "compared  4 MiB of 8 MiB (50 %)",
            "left      4 s",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = table(&[comparing]);
        assert!(text.contains("comparing 4 MiB 8 MiB 1 MiB/s 4 s"), "{text}");
    }
}
