//! `nvlane info`: what a volume is and can do.

use crate::admin::{columns, json_object};
use crate::cli::{InfoArgs, ListFormat};
use crate::copy::plan;
use crate::origin::settled;
use crate::paths;
use crate::patience;
use crate::size;
use crate::stdout;
use anyhow::Result;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::sync::Arc;

/// Opens the volume, read as `serve` would, and prints its facts; and by which means it is copied to another.
pub fn run(args: &InfoArgs) -> Result<()> {
    let volume = patience::open(&args.volume, &volume::OpenOptions::default())?;
    let limits = volume.limits();
    let mut facts = Vec::new();
    volume.describe(&mut facts);
    let commands = [
        ("write zeroes", limits.commands.write_zeroes),
        ("deallocate", limits.commands.deallocate),
        ("write uncorrectable", limits.commands.write_uncorrectable),
        ("compare", limits.commands.compare),
        ("compare and write", limits.commands.compare_and_write),
        ("verify", limits.commands.verify),
        ("checksum", limits.commands.checksum),
    ];
    let able: Vec<&str> = commands.iter().filter(|(_, can)| *can).map(|(name, _)| *name).collect();

    let sample = paths::sample("", 0, &*volume);
    let target = match &args.target {
        // By another name it would be in use, by us.
        Some(target) if settled(target)? == settled(&args.volume)? => Some(Arc::clone(&volume)),
        Some(target) => Some(patience::open(target, &volume::OpenOptions::default())?),
        None => None,
    };
    let copied = target.map(|target| (target.uri(), plan::between(&volume, &target)));

    let mut out = Vec::new();
    if args.json || args.output_format == ListFormat::Json {
        let facts: Map<String, Value> =
            facts.into_iter().map(|(key, value)| (key, value.into())).collect();
        let Value::Object(mut object) = json!({
            "volume": volume.uri(),
            "bytes": limits.bytes(),
            "block_bytes": limits.block_bytes(),
            "transfer_bytes_max": limits.transfer_bytes_max,
            "optimal_write_bytes": limits.optimal_write_bytes,
            "read_only": limits.read_only,
            "volatile_write_cache": limits.volatile_write_cache,
            "commands": able,
            "facts": facts,
            "policy": sample.policy,
            "paths": sample.paths,
        }) else {
            unreachable!("it is an object")
        };
        if let Some((target, parts)) = copied {
            object.insert("copied_to".into(), json!({"volume": target, "parts": parts}));
        }
        writeln!(out, "{:#}", json_object(object))?;
    } else {
        let yes = |value: bool| if value { "yes" } else { "no" }.to_owned();
        let mut rows = vec![
            ("volume".to_owned(), volume.uri()),
            (
                "size".to_owned(),
                format!("{} ({} bytes)", size::format(limits.bytes()), limits.bytes()),
            ),
            ("block".to_owned(), format!("{} bytes", limits.block_bytes())),
            ("largest transfer".to_owned(), size::format(limits.transfer_bytes_max.into())),
            ("optimal write".to_owned(), size::format(limits.optimal_write_bytes.into())),
            ("read only".to_owned(), yes(limits.read_only)),
            ("volatile write cache".to_owned(), yes(limits.volatile_write_cache)),
            ("commands".to_owned(), format!("read, write, flush, {}", able.join(", "))),
        ];
        rows.extend(facts);
        let width = rows.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
        for (key, value) in rows {
            writeln!(out, "{key:width$}  {value}")?;
        }
        if !sample.paths.is_empty() {
            write!(out, "\npaths of {}", paths::table_of(&[sample]))?;
        }
        if let Some((target, parts)) = copied {
            writeln!(out, "\ncopied to {target}")?;
            let rows: Vec<[String; 3]> = parts
                .into_iter()
                .map(|part| {
                    [size::exact(part.offset), size::exact(part.bytes), part.means.to_string()]
                })
                .collect();
            out.write_all(columns(&["From", "Bytes", "Means"], &rows).as_bytes())?;
        }
    }
    stdout::write(out)
}
