//! `nvlane jobs`, and `nvlane copy --detach`: copies that the daemon does.

mod text;
mod wait;

use crate::admin::json_object;
use crate::cli::{CopyArgs, JobsArgs, JobsCommand, ListFormat};
use crate::control::client::Client;
use crate::control::method::{Job, JobAdd, JobClear, JobOf, JobThrottle, JobsCleared, Volume};
use crate::control::path;
use crate::copy::open::SERVED;
use crate::copy::plan::Told;
use crate::copy::spec::{Part, Spec};
use crate::doctor::quoted;
use crate::origin;
use crate::stdout;
use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use volume::{Kind, Uri};

/// How long a daemon has to say what it serves.
const PATIENCE: Duration = Duration::from_secs(2);

/// Gives the daemon a copy to do.
pub fn add(args: &CopyArgs, spec: Spec) -> Result<()> {
    let (socket, format) = (args.socket.clone(), args.output_format);
    let mut client = client(args)?;
    let wanted = wanted(spec, args.overlap_ok)?;
    let job = read::<Job>(client.call("job_add", value(&wanted))?)?;
    match format {
        ListFormat::Json => print(&one_json(&job)),
        ListFormat::Normal => {
            // What is said is to be what can be typed.
            let socket =
                socket.map(|path| format!(" --socket {}", quoted(&path.to_string_lossy())));
            let socket = socket.unwrap_or_default();
            print(&format!("job {}: nvlane jobs show {0}{socket}\n", job.id))
        }
    }
}

/// What the daemon would do.
pub fn plan(args: &CopyArgs, spec: Spec) -> Result<Told> {
    let mut client = client(args)?;
    let wanted = wanted(spec, args.overlap_ok)?;
    read(client.call("job_plan", value(&wanted))?)
}

fn client(args: &CopyArgs) -> Result<Client> {
    let socket = args.socket.clone().unwrap_or_else(path::socket);
    Ok(Client::connect(&socket)?.patient_for(Duration::from_millis(args.timeout)))
}

/// What the daemon is asked for.
fn wanted(spec: Spec, overlap_ok: bool) -> Result<JobAdd> {
    // The daemon's current directory is another one.
    let settle = |part: Part| -> Result<Part> {
        let is_served = part.volume.starts_with(SERVED);
        let volume = if is_served { part.volume } else { origin::settled(&part.volume)? };
        Ok(Part { volume, ..part })
    };
    let sources = spec.sources.into_iter().map(settle).collect::<Result<_>>()?;
    let targets = spec.targets.into_iter().map(settle).collect::<Result<_>>()?;
    Ok(JobAdd { sources, targets, options: spec.options, overlap_ok })
}

/// The name by which the daemon at `socket` copies the file at `path`, if it serves it as a whole.
pub fn served(path: &Path, socket: &Path) -> Option<String> {
    let id = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    let file = id(path)?;
    let mut client = Client::connect(socket).ok()?.patient_for(PATIENCE);
    let volumes: Vec<Volume> = read(client.call("volume_list", json!({})).ok()?).ok()?;
    let is_it = |volume: &&Volume| match volume.volume.parse::<Uri>().map(|uri| uri.kind) {
        Ok(Kind::File { path, .. }) => id(&path) == Some(file),
        _ => false,
    };
    let Volume { nqn, nsid, .. } = volumes.iter().find(is_it)?;
    Some(match volumes.iter().filter(|volume| volume.nsid == *nsid).count() {
        1 => format!("{SERVED}{nsid}"),
        _ => format!("{SERVED}{nqn}/{nsid}"),
    })
}

/// `nvlane jobs`.
pub fn run(args: &JobsArgs) -> Result<()> {
    let socket = args.socket.clone().unwrap_or_else(path::socket);
    let patience = Duration::from_millis(args.timeout);
    let mut client = Client::connect(&socket)?.patient_for(patience);
    let mut call =
        |method: &str, params: Value| -> Result<Value> { Ok(client.call(method, params)?) };
    let job = match args.command.clone().unwrap_or(JobsCommand::List) {
        JobsCommand::List => {
            let jobs: Vec<Job> = read(call("job_list", json!({}))?)?;
            return print(&match args.output_format {
                ListFormat::Json => {
                    let fields = Map::from_iter([("jobs".to_owned(), value(&jobs))]);
                    format!("{:#}\n", json_object(fields))
                }
                ListFormat::Normal => text::table(&jobs),
            });
        }
        JobsCommand::Clear { id } => {
            let cleared: JobsCleared = read(call("job_clear", value(&JobClear { id }))?)?;
            return print(&match args.output_format {
                ListFormat::Json => {
                    let Value::Object(fields) = value(&cleared) else {
                        unreachable!("it has fields")
                    };
                    format!("{:#}\n", json_object(fields))
                }
                ListFormat::Normal => text::cleared(&cleared.cleared),
            });
        }
        JobsCommand::Show { id } => find(read(call("job_list", json!({}))?)?, id)?,
        JobsCommand::Wait { id } => {
            let job = wait::wait(&socket, client, id, patience)?;
            let outcome = wait::outcome(&job);
            if args.output_format == ListFormat::Json {
                // Programs learn the end of one that is not done as well; whether it is does not depend on who reads.
                let printed = print(&one_json(&job));
                return outcome.and(printed);
            }
            outcome?;
            job
        }
        JobsCommand::Pause { id } => read(call("job_pause", value(&JobOf { id }))?)?,
        JobsCommand::Resume { id } => read(call("job_resume", value(&JobOf { id }))?)?,
        JobsCommand::Cancel { id } => read(call("job_cancel", value(&JobOf { id }))?)?,
        JobsCommand::Throttle { id, limit } => {
            read(call("job_throttle", value(&JobThrottle { id, throttle: limit }))?)?
        }
    };
    print(&match args.output_format {
        ListFormat::Json => one_json(&job),
        ListFormat::Normal => text::one(&job),
    })
}

fn find(jobs: Vec<Job>, id: u64) -> Result<Job> {
    jobs.into_iter().find(|job| job.id == id).with_context(|| format!("there is no job {id}"))
}

fn read<T: serde::de::DeserializeOwned>(result: Value) -> Result<T> {
    serde_json::from_value(result).context("the daemon is of another version")
}

fn value<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).expect("plain data")
}

fn print(text: &str) -> Result<()> {
    stdout::write(text)
}

fn one_json(job: &Job) -> String {
    let Value::Object(fields) = value(job) else { unreachable!("a job has fields") };
    format!("{:#}\n", json_object(fields))
}
