//! `nvlane jobs`, and `nvlane copy --detach`: copies that the daemon does.

mod text;
mod wait;

use crate::admin::json_object;
use crate::cli::{JobsArgs, JobsCommand, ListFormat};
use crate::control::client::Client;
use crate::control::method::{Job, JobAdd, JobClear, JobOf, JobThrottle, JobsCleared};
use crate::control::path;
use crate::copy::open::SERVED;
use crate::copy::spec::{Part, Spec};
use crate::origin;
use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::path::PathBuf;

/// Gives the daemon a copy to do.
pub fn add(spec: Spec, socket: Option<PathBuf>, format: ListFormat) -> Result<()> {
    // The daemon's current directory is another one.
    let settle = |part: Part| -> Result<Part> {
        let is_served = part.volume.starts_with(SERVED);
        let volume = if is_served { part.volume } else { origin::settled(&part.volume)? };
        Ok(Part { volume, ..part })
    };
    let sources = spec.sources.into_iter().map(settle).collect::<Result<_>>()?;
    let targets = spec.targets.into_iter().map(settle).collect::<Result<_>>()?;
    let mut client = Client::connect(&socket.unwrap_or_else(path::socket))?;
    let wanted = JobAdd { sources, targets, options: spec.options };
    let job = read::<Job>(client.call("job_add", value(&wanted))?)?;
    match format {
        ListFormat::Json => print(&one_json(&job)),
        ListFormat::Normal => print(&format!("job {}: nvlane jobs show {0}\n", job.id)),
    }
}

/// `nvlane jobs`.
pub fn run(args: &JobsArgs) -> Result<()> {
    let socket = args.socket.clone().unwrap_or_else(path::socket);
    let mut client = Client::connect(&socket)?;
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
        JobsCommand::Wait { id } => wait::wait(&socket, client, id)?,
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
    io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

fn one_json(job: &Job) -> String {
    let Value::Object(fields) = value(job) else { unreachable!("a job has fields") };
    format!("{:#}\n", json_object(fields))
}
