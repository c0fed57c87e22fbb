//! A command and what became of it, as text and as JSON.

use super::{Exchange, Outcome, names};
use crate::admin::{hex_bytes, hexdump, json_object};
use nvme::Status;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// The kind of queue, and the command's name.
pub fn title(exchange: &Exchange<'_>) -> (&'static str, &'static str) {
    let queue = if exchange.admin { "Admin" } else { "IO" };
    (queue, names::of(exchange.admin, exchange.command.opcode))
}

/// The command's fields as nvme-cli shows them.
pub fn request(exchange: &Exchange<'_>) -> String {
    let mut text = String::new();
    for (name, value, digits) in fields(exchange) {
        let _ = writeln!(text, "{name:<13}: {value:0digits$x}");
    }
    text
}

/// The command as JSON, when it is not sent.
pub fn request_json(exchange: &Exchange<'_>) -> String {
    let mut object = head(exchange);
    object.insert("dry_run".into(), true.into());
    format!("{:#}\n", json_object(object))
}

/// One line or two: how it went, and how long it took.
pub fn outcome(exchange: &Exchange<'_>, done: &Outcome, latency: Option<Duration>) -> String {
    let (queue, name) = title(exchange);
    let mut text = String::new();
    if done.status.is_success() {
        let digits = if done.result >> 32 == 0 { 8 } else { 16 };
        let result = done.result;
        let _ =
            writeln!(text, "{queue} Command {name} is Success and result: 0x{result:0digits$x}");
    }
    if let Some(latency) = latency {
        let _ = writeln!(text, "{queue} Command {name} latency: {} us", latency.as_micros());
    }
    text
}

/// What has been received.
pub fn dump(done: &Outcome) -> String {
    let mut text = String::new();
    if !done.data.is_empty() {
        text.push_str(&hexdump(done.data.as_slice()));
    }
    if !done.metadata.is_empty() {
        text.push_str("metadata:\n");
        text.push_str(&hexdump(done.metadata.as_slice()));
    }
    text
}

/// Everything as JSON; data only if it was `received`.
pub fn outcome_json(
    exchange: &Exchange<'_>,
    done: &Outcome,
    latency: Option<Duration>,
    received: bool,
) -> String {
    let status = done.status;
    let mut object = head(exchange);
    object.insert("success".into(), status.is_success().into());
    object.insert(
        "status".into(),
        json!({
            "value": status.0,
            "type": status.sct(),
            "code": status.0 & 0xff,
            "words": status_words(exchange, status),
            "retry_delay": status.0 >> 11 & 3,
            "more": status.0 & Status::MORE != 0,
            "do_not_retry": status.0 & Status::DNR != 0,
        }),
    );
    // jq and others have 53 bits for a number.
    object.insert("result".into(), done.result.into());
    object.insert("result_hex".into(), format!("{:#x}", done.result).into());
    if let Some(latency) = latency {
        object.insert("latency_ns".into(), (latency.as_nanos() as u64).into());
    }
    for (name, bytes) in [("data", &done.data), ("metadata", &done.metadata)] {
        if received && !bytes.is_empty() {
            object.insert(name.into(), hex_bytes(bytes.as_slice()).into());
        }
    }
    format!("{:#}\n", json_object(object))
}

/// The specification's words: some numbers mean something else after other commands.
fn status_words(exchange: &Exchange<'_>, status: Status) -> Option<&'static str> {
    if exchange.admin { status.words() } else { status.io_words(exchange.command.opcode) }
}

/// A status in words and numbers.
pub fn status_text(exchange: &Exchange<'_>, status: Status) -> String {
    match exchange.admin {
        true => status.to_string(),
        false => status.io_text(exchange.command.opcode).to_string(),
    }
}

/// What both kinds of JSON have.
fn head(exchange: &Exchange<'_>) -> Map<String, Value> {
    let (queue, name) = title(exchange);
    let request: Map<String, Value> = fields(exchange)
        .into_iter()
        .map(|(name, value, _)| (name.to_owned(), value.into()))
        .collect();
    Map::from_iter([
        ("volume".to_owned(), exchange.uri.into()),
        ("queue".to_owned(), queue.to_lowercase().into()),
        ("command".to_owned(), name.into()),
        ("request".to_owned(), request.into()),
    ])
}

/// The command's fields in nvme-cli's order, with the hexadecimal digits of each.
fn fields(exchange: &Exchange<'_>) -> [(&'static str, u32, usize); 15] {
    let (command, args) = (&exchange.command, exchange.args);
    [
        ("opcode", command.opcode.into(), 2),
        ("flags", command.flags.into(), 2),
        ("rsvd1", command.cid.get().into(), 4),
        ("nsid", command.nsid.get(), 8),
        ("cdw2", command.cdw2.get(), 8),
        ("cdw3", command.cdw3.get(), 8),
        ("data_len", args.data_len, 8),
        ("metadata_len", args.metadata_len, 8),
        ("cdw10", command.cdw10.get(), 8),
        ("cdw11", command.cdw11.get(), 8),
        ("cdw12", command.cdw12.get(), 8),
        ("cdw13", command.cdw13.get(), 8),
        ("cdw14", command.cdw14.get(), 8),
        ("cdw15", command.cdw15.get(), 8),
        ("timeout_ms", args.timeout, 8),
    ]
}
