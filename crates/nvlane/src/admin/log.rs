//! `nvlane get-log`: any log page, as it is.

use super::connect::Remote;
use super::{fields, json, text};
use crate::cli::{Format, GetLogArgs};
use crate::stdout;
use anyhow::{Result, ensure};
use host::client::LogPage;
use nvme::log::Lid;
use serde_json::{Map, Value, json};

/// `nvlane get-log`.
pub fn get_log(args: &GetLogArgs) -> Result<()> {
    ensure!(
        args.log_len > 0 && args.log_len.is_multiple_of(4),
        "--log-len {}: a log is read in dwords; give a multiple of four bytes",
        args.log_len
    );
    ensure!(args.lsp < 0x80 && args.uuid_index < 0x80, "--lsp and --uuid-index have seven bits");
    let remote = Remote::of(args.device.as_deref(), &args.remote, args.nqn.as_deref())?;
    let nsid = args.namespace_id.or(remote.nsid).unwrap_or(nvme::NSID_ALL);
    let page = LogPage {
        nsid,
        lsp: args.lsp,
        lsi: args.lsi,
        csi: args.csi,
        uuid_index: args.uuid_index,
        offset: args.lpo,
        index_offset: args.ot,
        retain_event: args.rae,
        ..LogPage::new(Lid(args.log_id))
    };
    let mut client = remote.connect()?;
    let data = client.log_page(&page, args.log_len)?;
    let out = match if args.raw_binary { Format::Binary } else { args.output_format } {
        Format::Binary => data,
        Format::Normal => {
            let head =
                format!("Device:{} log-id:{} namespace-id:{nsid:#x}\n", client.peer(), args.log_id);
            format!("{head}{}", text::hexdump(&data)).into_bytes()
        }
        Format::Json => json::write(Map::from_iter([
            ("lid".to_owned(), json!(args.log_id)),
            ("nsid".to_owned(), json!(nsid)),
            ("lpo".to_owned(), json!(args.lpo)),
            ("length".to_owned(), json!(data.len())),
            ("data".to_owned(), Value::from(fields::hex_bytes(&data))),
        ])),
    };
    stdout::write(out)
}
