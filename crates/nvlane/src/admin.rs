//! What a controller is asked on the command line, with nvme-cli's names: `discover`, `id-ctrl`,
//! `id-ns`, `get-log`, `show-regs`, `list`, `list-subsys`; and `kickstart`, which asks to be asked.
//!
//! ```text
//!   arguments --connect--> host::client::Client --> bytes --> fields (tables) --> text, JSON, binary
//! ```
//!
//! Text goes by the specification's short names in the order of the data structure, as with
//! nvme-cli; JSON is described in docs/cli-json.md, and says which version of that it is
//! ([`json::SCHEMA_VERSION`]). What a controller sends is bytes to be shown: letters that would move
//! a terminal's cursor are replaced.
//!
//! What it does not do: I/O. That is `session`.

mod ana;
mod connect;
mod controller;
mod discover;
mod fields;
mod json;
mod kickstart;
mod list;
mod log;
mod namespace;
mod registers;
mod subsystems;
mod text;
mod topology;

pub use discover::discover;
pub use fields::hex_bytes;
pub use json::object as json_object;
pub use kickstart::kickstart;
pub use list::{columns, list};
pub use log::get_log;
pub use registers::show_regs;
pub use subsystems::list_subsys;
pub use text::hexdump;

use crate::cli::{Format, IdCtrlArgs, IdNsArgs, ShowArgs};
use crate::stdout;
use anyhow::Result;
use connect::Remote;
use fields::Table;
use host::client::Identify;
use nvme::identify::Cns;

/// `nvlane id-ctrl`.
pub fn id_ctrl(args: &IdCtrlArgs) -> Result<()> {
    let remote = Remote::of(args.device.as_deref(), &args.remote, args.nqn.as_deref())?;
    let data = remote.connect()?.identify(Identify::new(Cns::CONTROLLER, 0))?;
    show(&controller::TABLE, "NVME Identify Controller:\n", &data, &args.show)
}

/// `nvlane id-ns`.
pub fn id_ns(args: &IdNsArgs) -> Result<()> {
    let mut remote = Remote::of(args.device.as_deref(), &args.remote, args.nqn.as_deref())?;
    remote.nsid = args.namespace_id.or(remote.nsid);
    let mut client = remote.connect()?;
    let nsid = remote.only_namespace(&mut client)?;
    // For its checks: an inactive namespace is all zeroes.
    client.identify_namespace(nsid)?;
    let data = client.identify(Identify::new(Cns::NAMESPACE, nsid))?;
    show(&namespace::TABLE, &format!("NVME Identify Namespace {nsid}:\n"), &data, &args.show)
}

/// Writes an Identify data structure.
fn show(table: &Table, title: &str, data: &[u8], how: &ShowArgs) -> Result<()> {
    let out = match how.format() {
        Format::Binary => data.to_vec(),
        Format::Json => json::write(table.json(data)),
        Format::Normal => {
            let mut out = title.to_owned();
            out.push_str(&table.text(data, how.human_readable));
            if how.vendor_specific {
                out.push_str("vs[]:\n");
                out.push_str(&text::hexdump(&data[table.vendor_specific.clone()]));
            }
            out.into_bytes()
        }
    };
    stdout::write(out)
}
