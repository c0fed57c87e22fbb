//! `nvlane ctl metrics`: what the control socket tells, as metrics for Prometheus.
//!
//! ```text
//!   stats, volume_list, ..., job_list --> Gathered --> Exposition --> standard output, or a file as a whole
//! ```
//!
//! The servers of block devices answer `volume_paths` alone: of them there are the paths. Those of `nvlane nbd` have counters as well, but neither jobs nor hosts.
//! docs/monitoring.md lists the metrics. Names and labels stay as they are.

use super::exposition::{Exposition, Family, Kind};
use crate::config::store;
use crate::control::client::{Client, ClientError};
use crate::control::lists::ControllerNow;
use crate::control::method::{Job, JobState, PathNow, Volume, VolumeMissing, VolumePaths};
use crate::control::protocol::Failure;
use crate::control::times::Times;
use crate::daemon::Statistics;
use crate::stdout;
use anyhow::{Context, Result};
use namespace::counters::latency_bound_ns;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Version of the names and labels.
const VERSION: u32 = 1;

/// Hosts of which there are metrics by name; whoever may connect can give itself any name, and each is kept by Prometheus.
const HOSTS_MAX: usize = 1024;

/// States of a path.
const PATH_STATES: [&str; 6] =
    ["optimized", "non-optimized", "inaccessible", "lost", "failing", "gone"];

const COUNTER: Kind = Kind::Counter;
const GAUGE: Kind = Kind::Gauge;

/// Writes the metrics of whoever listens at `socket`.
pub fn run(socket: &Path, patience: Duration, file: Option<&Path>) -> Result<()> {
    let mut client = Client::connect(socket)?.patient_for(patience);
    let text = Gathered::from(&mut client)?.text();
    match file {
        // Whoever collects it is another user.
        Some(file) => {
            let written = store::write_output(file, text.as_bytes(), 0o644);
            written.with_context(|| file.display().to_string())
        }
        None => stdout::write(text),
    }
}

/// What a server tells.
#[derive(Default)]
struct Gathered {
    /// None of a server that is no daemon.
    stats: Option<Statistics>,
    volumes: Vec<Volume>,
    missing: Option<Vec<VolumeMissing>>,
    paths: Vec<VolumePaths>,
    jobs: Option<Vec<Job>>,
    controllers: Vec<ControllerNow>,
}

impl Gathered {
    fn from(client: &mut Client) -> Result<Gathered> {
        let mut gathered = Gathered { stats: known(client, "stats")?, ..Gathered::default() };
        gathered.paths = known(client, "volume_paths")?.unwrap_or_default();
        if gathered.stats.is_some() {
            gathered.volumes = known(client, "volume_list")?.unwrap_or_default();
            gathered.missing = known(client, "volume_missing")?;
            gathered.jobs = known(client, "job_list")?;
            gathered.controllers = known(client, "controller_list")?.unwrap_or_default();
        }
        Ok(gathered)
    }

    fn text(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let mut all = Exposition::new(&format!("nvlane {version}, metrics of version {VERSION}"));
        if let Some(stats) = &self.stats {
            process(&mut all, stats);
            self.namespaces(&mut all, stats);
            self.hosts(&mut all);
            refused(&mut all, stats);
            cores(&mut all, stats);
            self.jobs(&mut all);
        }
        self.paths(&mut all);
        all.into_text()
    }

    fn namespaces(&self, all: &mut Exposition, stats: &Statistics) {
        let help = "A namespace that is served, by its volume's URI.";
        all.family((GAUGE, "nvlane_namespace_info"), help, |family| {
            for it in &self.volumes {
                let (nsid, uuid) = (it.nsid.to_string(), it.uuid.to_string());
                let (nqn, volume) = (("nqn", &*it.nqn), ("volume", &*it.volume));
                family.sample(&[nqn, ("nsid", &nsid), volume, ("uuid", &uuid)], 1);
            }
        });
        all.family((GAUGE, "nvlane_namespace_size_bytes"), "Its capacity.", |family| {
            for it in &self.volumes {
                family.sample(&[("nqn", &it.nqn), ("nsid", &it.nsid.to_string())], it.bytes);
            }
        });
        let help = "Commands of hosts that succeeded.";
        all.family((COUNTER, "nvlane_namespace_commands_total"), help, |family| {
            for it in &stats.namespaces {
                let commands = [
                    ("read", it.reads),
                    ("write", it.writes),
                    ("copy", it.copies),
                    ("other", it.others),
                ];
                by_command(family, &it.nqn, it.nsid, &commands);
            }
        });
        let help = "Bytes sent to hosts, taken from hosts, and copied into the namespace.";
        all.family((COUNTER, "nvlane_namespace_bytes_total"), help, |family| {
            for it in &stats.namespaces {
                let bytes = [
                    ("read", it.read_bytes),
                    ("write", it.written_bytes),
                    ("copy", it.copied_bytes),
                ];
                by_command(family, &it.nqn, it.nsid, &bytes);
            }
        });
        let help = "How long commands of hosts took in the volume, of those that succeeded.";
        all.family((Kind::Histogram, "nvlane_namespace_latency_seconds"), help, |family| {
            for it in &stats.namespaces {
                for (command, times) in it.latency.named() {
                    times_of(family, (&it.nqn, it.nsid, command), times);
                }
            }
        });
        let help = "Commands of hosts that the volume failed.";
        all.family((COUNTER, "nvlane_namespace_errors_total"), help, |family| {
            for it in &stats.namespaces {
                family.sample(&[("nqn", &it.nqn), ("nsid", &it.nsid.to_string())], it.errors);
            }
        });
        let help = "Volumes that are to be served (nofail), and cannot be opened now.";
        all.family((GAUGE, "nvlane_volumes_missing"), help, |family| {
            if let Some(missing) = &self.missing {
                family.sample(&[], missing.len());
            }
        });
        let help = "For how long a volume has been missing.";
        all.family((GAUGE, "nvlane_volume_missing_seconds"), help, |family| {
            for it in self.missing.iter().flatten() {
                let labels =
                    [("nqn", &*it.nqn), ("nsid", &it.nsid.to_string()), ("volume", &it.volume)];
                family.sample(&labels, it.seconds);
            }
        });
    }

    fn hosts(&self, all: &mut Exposition) {
        // Controllers and connections.
        let mut hosts = BTreeMap::<(&str, &str), [u64; 2]>::new();
        for it in &self.controllers {
            let mut key = (&*it.nqn, &*it.host_nqn);
            if hosts.len() >= HOSTS_MAX && !hosts.contains_key(&key) {
                key.1 = "(others)";
            }
            let counts = hosts.entry(key).or_default();
            counts[0] += 1;
            counts[1] += 1 + u64::from(it.io_queues);
        }
        let by_host = |family: &mut Family<'_>, which: usize| {
            for ((nqn, host), counts) in &hosts {
                family.sample(&[("nqn", nqn), ("host", host)], counts[which]);
            }
        };
        let help = "Controllers of a host that is connected.";
        all.family((GAUGE, "nvlane_host_controllers"), help, |family| by_host(family, 0));
        let help = "Connections of a host: an admin queue for each controller, and I/O queues.";
        all.family((GAUGE, "nvlane_host_connections"), help, |family| by_host(family, 1));
    }

    fn jobs(&self, all: &mut Exposition) {
        let Some(jobs) = &self.jobs else { return };
        let help = "Copies that the daemon does by itself, by state.";
        all.family((GAUGE, "nvlane_jobs"), help, |family| {
            use JobState::{Cancelled, Cancelling, Done, Failed, Paused, Pausing, Running};
            for state in [Running, Pausing, Paused, Done, Failed, Cancelling, Cancelled] {
                let count = jobs.iter().filter(|job| job.state == state).count();
                family.sample(&[("state", &word(json!(state)))], count);
            }
        });
        let by_job = |family: &mut Family<'_>, value: &dyn Fn(&Job) -> u64| {
            for job in jobs {
                family.sample(&[("id", &job.id.to_string())], value(job));
            }
        };
        all.family((GAUGE, "nvlane_job_size_bytes"), "Bytes that a job is to copy.", |family| {
            by_job(family, &|job| job.counts.total_bytes);
        });
        all.family((GAUGE, "nvlane_job_done_bytes"), "Bytes that it has copied.", |family| {
            by_job(family, &|job| job.counts.done_bytes);
        });
    }

    fn paths(&self, all: &mut Exposition) {
        let paths: Vec<_> = self
            .paths
            .iter()
            .flat_map(|volume| {
                let names = distinct(volume);
                let nsid = volume.nsid.to_string();
                volume
                    .paths
                    .iter()
                    .zip(names)
                    .map(move |(path, name)| ([volume.nqn.clone(), nsid.clone(), name], path))
            })
            .collect();
        let each = |family: &mut Family<'_>, value: &dyn Fn(&PathNow) -> Option<String>| {
            for ([nqn, nsid, name], path) in &paths {
                if let Some(value) = value(path) {
                    family.sample(&[("nqn", nqn), ("nsid", nsid), ("path", name)], value);
                }
            }
        };
        let help = "1 for the state that a path of a remote volume is in.";
        all.family((GAUGE, "nvlane_path_state"), help, |family| {
            for ([nqn, nsid, name], path) in &paths {
                for state in PATH_STATES {
                    let labels =
                        [("nqn", &**nqn), ("nsid", nsid), ("path", name), ("state", state)];
                    family.sample(&labels, u8::from(path.access == state));
                }
            }
        });
        let help = "Whether commands may be sent by a path.";
        all.family((GAUGE, "nvlane_path_up"), help, |family| {
            each(family, &|path| Some(u8::from(path.is_live()).to_string()));
        });
        let help = "Whether a path is kept for when no other can be used.";
        all.family((GAUGE, "nvlane_path_standby"), help, |family| {
            each(family, &|path| Some(u8::from(path.standby).to_string()));
        });
        let help = "Commands in flight.";
        all.family((GAUGE, "nvlane_path_in_flight_commands"), help, |family| {
            each(family, &|path| Some(path.in_flight.to_string()));
        });
        let help = "What the policy gives a path, 0 to 1.";
        all.family((GAUGE, "nvlane_path_weight_ratio"), help, |family| {
            each(family, &|path| Some((f64::from(path.weight) / 128.0).to_string()));
        });
        let help = "Half of the latencies of the last seconds are below.";
        all.family((GAUGE, "nvlane_path_latency_p50_seconds"), help, |family| {
            each(family, &|path| seconds(path.p50_ns));
        });
        let help = "99 of 100 latencies of the last seconds are below.";
        all.family((GAUGE, "nvlane_path_latency_p99_seconds"), help, |family| {
            each(family, &|path| seconds(path.p99_ns));
        });
        let help = "Commands sent.";
        all.family((COUNTER, "nvlane_path_commands_total"), help, |family| {
            each(family, &|path| Some(path.selections.to_string()));
        });
        let help = "Commands that came back with an error of the path.";
        all.family((COUNTER, "nvlane_path_errors_total"), help, |family| {
            each(family, &|path| Some(path.errors.to_string()));
        });
        let help = "Connections made after the first.";
        all.family((COUNTER, "nvlane_path_reconnects_total"), help, |family| {
            each(family, &|path| Some(path.reconnects.to_string()));
        });
    }
}

fn process(all: &mut Exposition, stats: &Statistics) {
    let help = "The version of the daemon.";
    all.family((GAUGE, "nvlane_build_info"), help, |family| {
        family.sample(&[("version", &stats.version)], 1);
    });
    let mut one = |kind: Kind, name: &'static str, help: &str, value: Option<String>| {
        all.family((kind, name), help, |family| {
            if let Some(value) = value {
                family.sample(&[], value);
            }
        });
    };
    one(
        GAUGE,
        "nvlane_uptime_seconds",
        "Since it was started.",
        Some(stats.uptime_seconds.to_string()),
    );
    let it = stats.process.as_ref();
    let help = "When it was started, since 1970.";
    let value = it.map(|it| it.start_time_seconds.to_string());
    one(GAUGE, "nvlane_process_start_time_seconds", help, value);
    let value = it.map(|it| it.resident_bytes.to_string());
    one(GAUGE, "nvlane_process_resident_memory_bytes", "Memory that is resident.", value);
    let value = it.map(|it| (it.cpu_ms as f64 / 1e3).to_string());
    one(COUNTER, "nvlane_process_cpu_seconds_total", "Time of processors.", value);
    let value = it.map(|it| it.open_files.to_string());
    one(GAUGE, "nvlane_process_open_fds", "Open files and sockets.", value);
    let value = it.map(|it| it.open_files_max.to_string());
    one(GAUGE, "nvlane_process_max_fds", "As many there can be.", value);
}

fn refused(all: &mut Exposition, stats: &Statistics) {
    let Some(refused) = &stats.refused else { return };
    let help = "Connections of hosts that were not let in, by what they lacked.";
    all.family((COUNTER, "nvlane_refused_total"), help, |family| {
        for (why, count) in [
            ("connect", refused.connect),
            ("authentication", refused.authentication),
            ("tls", refused.tls),
        ] {
            family.sample(&[("why", why)], count);
        }
    });
}

fn cores(all: &mut Exposition, stats: &Statistics) {
    use crate::daemon::CoreStatistics as Core;
    let mut each = |kind: Kind, name: &'static str, help: &str, value: &dyn Fn(&Core) -> u64| {
        all.family((kind, name), help, |family| {
            for (index, core) in stats.cores.iter().enumerate() {
                family.sample(&[("core", &index.to_string())], value(core));
            }
        });
    };
    each(GAUGE, "nvlane_core_connections", "Connections of a core.", &|it| it.connections as u64);
    each(COUNTER, "nvlane_core_turns_total", "Turns of its loop.", &|it| it.turns);
    each(COUNTER, "nvlane_core_enters_total", "Calls of io_uring_enter.", &|it| it.enters);
    each(COUNTER, "nvlane_core_sleeps_total", "Those of them that slept.", &|it| it.sleeps);
    let help = "Operations handed to the kernel.";
    each(COUNTER, "nvlane_core_submitted_total", help, &|it| it.submitted);
    let help = "Completions taken from the kernel.";
    each(COUNTER, "nvlane_core_completed_total", help, &|it| it.completed);
    let help = "Operations that the kernel holds.";
    each(GAUGE, "nvlane_core_in_flight_operations", help, &|it| it.in_flight as u64);
    let help = "Size of its buffer pool.";
    each(GAUGE, "nvlane_core_buffer_size_bytes", help, &|it| it.buffer_bytes as u64);
    let help = "Free bytes of its buffer pool; the others are lent to commands.";
    each(GAUGE, "nvlane_core_buffer_free_bytes", help, &|it| it.buffer_bytes_free as u64);
}

fn by_command(family: &mut Family<'_>, nqn: &str, nsid: u32, values: &[(&str, u64)]) {
    for (command, value) in values {
        family.sample(&[("nqn", nqn), ("nsid", &nsid.to_string()), ("command", command)], value);
    }
}

/// Times of a kind of command, unless there was none of it.
fn times_of(family: &mut Family<'_>, (nqn, nsid, command): (&str, u32, &str), times: &Times) {
    if times.count() == 0 {
        return;
    }
    let mut sum = 0;
    let up_to = times.buckets.iter().enumerate().filter_map(|(index, count)| {
        sum += count;
        Some((latency_bound_ns(index)? as f64 / 1e9, sum))
    });
    let labels = [("nqn", nqn), ("nsid", &*nsid.to_string()), ("command", command)];
    family.histogram(&labels, up_to, (times.count(), times.sum_ns as f64 / 1e9));
}

/// The names of a volume's paths. Those that are alike have a number behind them: Prometheus takes no two with the same labels.
fn distinct(volume: &VolumePaths) -> Vec<String> {
    let mut seen = BTreeMap::<&str, u32>::new();
    let names = volume.paths.iter().map(|path| {
        let count = seen.entry(&path.name).or_default();
        *count += 1;
        if *count == 1 { path.name.clone() } else { format!("{} #{count}", path.name) }
    });
    names.collect()
}

/// A word of an enumeration as JSON has it.
fn word(value: Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// What a method gives; none if whoever answers does not know it.
fn known<T: DeserializeOwned>(client: &mut Client, method: &str) -> Result<Option<T>> {
    match client.call(method, json!({})) {
        Ok(result) => {
            let read = serde_json::from_value(result);
            read.map(Some).context("the daemon is of another version")
        }
        Err(ClientError::Failed(failure)) if failure.code == Failure::method(method).code => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// A latency; nothing is known of one that is zero.
fn seconds(ns: u64) -> Option<String> {
    (ns > 0).then(|| (ns as f64 / 1e9).to_string())
}
