//! The commands that send one command as it is, with nvme-cli's flags, and the one that says what would
//! stop them: `nvlane io`, `nvlane admin`, `nvlane doctor`.

use super::admin::number;
use super::{Format, ListFormat};
use clap::Args;
use std::path::PathBuf;

/// `nvlane io`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane io disk.img --opcode 2 --data-len 4096 --cdw10 8 --cdw12 7 --read      8 blocks from block 8
  nvlane io /dev/ng0n1 -O 0x7d -l 4096 --cdw10 0 --cdw12 7 -w -i page.bin       Zone Append
  nvlane io 'tcp://192.0.2.1:4420/nqn.2026-11.com.example:a?ns=1' -O 1 -l 512 -w < block.bin
  nvlane io /dev/ng0n1 -O 0x91 -l 4096 -r -o json                               a vendor's command

The flags are those of `nvme io-passthru`; -O is the opcode, since -o is the form of the output. The exit
status is 0 if the command succeeded, 1 if it did not: then standard error says the status in words.")]
pub struct IoArgs {
    /// The volume: a path or a URI.
    pub volume: String,
    /// The command.
    #[command(flatten)]
    pub command: PassthroughArgs,
}

/// `nvlane admin`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane admin /dev/nvme0 --opcode 6 --data-len 4096 --cdw10 1 --read           Identify Controller
  nvlane admin 'tcp://192.0.2.1:4420/nqn.2026-11.com.example:a?ns=1' -O 2 -l 512 -n 0xffffffff \\
      --cdw10 0x7f0002 -r -b > smart.bin                                        SMART log, as it came
  nvlane admin /dev/ng0n1 -O 0xc1 --cdw12 3 --dry-run                           a vendor's command, only shown

The flags are those of `nvme admin-passthru`; -O is the opcode, since -o is the form of the output. The exit
status is 0 if the command succeeded, 1 if it did not: then standard error says the status in words.")]
pub struct AdminArgs {
    /// The controller (`/dev/nvme0`), or a volume whose controller is to carry it out: a path or a URI.
    pub volume: String,
    /// The command.
    #[command(flatten)]
    pub command: PassthroughArgs,
}

/// A command as nvme-cli's flags tell it.
#[derive(Clone, Debug, Args)]
pub struct PassthroughArgs {
    /// Opcode.
    #[arg(short = 'O', long, value_name = "CODE", value_parser = number::<u8>)]
    pub opcode: u8,
    /// Byte 1 of the command. It is shown; who sends it says how data is described, and there are no fused operations.
    #[arg(short = 'f', long, value_name = "BITS", value_parser = number::<u8>, default_value = "0")]
    pub flags: u8,
    /// Bytes 2 and 3. They are shown; the command's identifier takes their place when it is sent.
    #[arg(short = 'R', long, value_name = "VALUE", value_parser = number::<u16>, default_value = "0")]
    pub rsvd: u16,
    /// Namespace id. An I/O command is for the volume's own.
    #[arg(short = 'n', long, value_name = "NSID", value_parser = number::<u32>, default_value = "0")]
    pub namespace_id: u32,
    /// Bytes of data.
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = data_len, default_value = "0")]
    pub data_len: u32,
    /// A file with the metadata to be sent, or for what is received.
    #[arg(short = 'M', long, value_name = "FILE", requires = "metadata_len")]
    pub metadata: Option<PathBuf>,
    /// Bytes of metadata.
    #[arg(short = 'm', long, value_name = "BYTES", value_parser = data_len, default_value = "0")]
    pub metadata_len: u32,
    /// Milliseconds that the command may take; 0 is what the volume has for a time-out.
    #[arg(short = 't', long, value_name = "MS", value_parser = number::<u32>, default_value = "0")]
    pub timeout: u32,
    /// Command dword 2.
    #[arg(short = '2', long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    pub cdw2: u32,
    /// Command dword 3.
    #[arg(short = '3', long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    pub cdw3: u32,
    /// Command dword 10.
    #[arg(short = '4', long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    pub cdw10: u32,
    /// Command dword 11.
    #[arg(short = '5', long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    pub cdw11: u32,
    /// Command dword 12.
    #[arg(short = '6', long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    pub cdw12: u32,
    /// Command dword 13.
    #[arg(short = '7', long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    pub cdw13: u32,
    /// Command dword 14.
    #[arg(short = '8', long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    pub cdw14: u32,
    /// Command dword 15.
    #[arg(short = '9', long, value_name = "VALUE", value_parser = number::<u32>, default_value = "0")]
    pub cdw15: u32,
    /// A file with the data to be sent, instead of standard input; or for what is received.
    #[arg(short, long, value_name = "FILE")]
    pub input_file: Option<PathBuf>,
    /// What a buffer holds before it is sent or filled.
    #[arg(short, long, value_name = "BYTE", value_parser = number::<u8>, default_value = "0")]
    pub prefill: u8,
    /// Data comes from the controller. So it is without this where the opcode says so.
    #[arg(short, long)]
    pub read: bool,
    /// Data goes to the controller. So it is without this where the opcode says so.
    #[arg(short, long)]
    pub write: bool,
    /// Show the command before it is sent.
    #[arg(short, long)]
    pub show_command: bool,
    /// Show the command, and do not send it.
    #[arg(short, long)]
    pub dry_run: bool,
    /// Tell how long it took.
    #[arg(short = 'T', long)]
    pub latency: bool,
    /// How to write it.
    #[arg(short, long, value_enum, default_value = "normal")]
    pub output_format: Format,
    /// Write the data as it came; the same as -o binary.
    #[arg(short = 'b', long)]
    pub raw_binary: bool,
}

impl PassthroughArgs {
    /// The form that is wanted.
    pub fn format(&self) -> Format {
        if self.raw_binary { Format::Binary } else { self.output_format }
    }
}

/// `nvlane doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane doctor                          this kernel, this user
  nvlane doctor /dev/ng0n1               and what this device allows
  nvlane doctor /dev/nvme0               and whether this controller takes admin commands
  nvlane doctor disk.img -o json | jq -r '.checks[] | select(.state == \"missing\") | .mend'

Each line says whether a capability is to be had, found out by trying it; of one that is not, what is
missing and the command that mends it. The exit status is 0 if nothing that nvlane needs is missing
(and the volume, if one is named, can be opened), 1 if something is. Optional features that are absent
do not affect the exit status.")]
pub struct DoctorArgs {
    /// A volume to look at as well, or a controller: a path or a URI.
    pub volume: Option<String>,
    /// How to write it.
    #[arg(short, long, value_enum, default_value = "normal")]
    pub output_format: ListFormat,
}

/// A length that one command may have.
fn data_len(text: &str) -> Result<u32, String> {
    /// More than the transfer size of any controller.
    const MOST: u32 = 64 << 20;
    match number::<u32>(text)? {
        bytes if bytes <= MOST => Ok(bytes),
        _ => Err(format!("`{text}`: a command has {MOST} bytes of data at most")),
    }
}
