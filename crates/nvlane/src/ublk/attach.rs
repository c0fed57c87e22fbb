//! `nvlane attach` and `nvlane detach`: a volume, mostly one of another machine, and its block device in one step,
//! with the server in the background.

use super::record::Record;
use super::{background, delete, list};
use crate::cli::{AttachArgs, DetachArgs};
use anyhow::{Context, Result, bail};

/// Starts a server and waits until the device is there.
pub fn attach(args: &AttachArgs) -> Result<()> {
    // Said by us, rather than by a server whose words go to a file.
    drop(super::open_control()?);
    background::attach(&args.make)
}

/// Takes devices away, by number, name, or volume.
pub fn detach(args: &DetachArgs) -> Result<()> {
    let mut control = super::open_control()?;
    each(&args.devices, |name| {
        let id = id_of(name)?;
        delete(&mut control, id, args.force).with_context(|| format!("/dev/ublkb{id}"))
    })
}

/// Does the same to each, whatever comes of the others; of several errors all but the last are told here.
pub fn each<T>(these: &[T], mut what: impl FnMut(&T) -> Result<()>) -> Result<()> {
    let mut outcome = Ok(());
    for one in these {
        if let Err(error) = what(one)
            && let Err(before) = std::mem::replace(&mut outcome, Err(error))
        {
            crate::stderr::line(format_args!("nvlane: {before:#}"));
        }
    }
    outcome
}

/// The N of `N`, `/dev/ublkbN` and `ublkbN`.
pub fn device_id(name: &str) -> Option<u32> {
    name.parse().ok().or_else(|| device_number(name))
}

/// The N of `/dev/ublkbN` and `ublkbN`.
pub fn device_number(name: &str) -> Option<u32> {
    name.strip_prefix("/dev/").unwrap_or(name).strip_prefix("ublkb")?.parse().ok()
}

fn id_of(name: &str) -> Result<u32> {
    if let Some(id) = device_id(name) {
        return Ok(id);
    }
    let noted = list::ids().into_iter().filter_map(|id| Some((id, Record::read(id)?)));
    id_of_volume(name, noted)
}

/// The only one of devices that has a volume.
fn id_of_volume(volume: &str, noted: impl Iterator<Item = (u32, Record)>) -> Result<u32> {
    let its = noted.filter(|(_, record)| record.is_of(volume)).map(|(id, _)| id);
    match its.collect::<Vec<u32>>()[..] {
        [id] => Ok(id),
        [] => bail!("{volume} is no device of ublk, nor the volume of one"),
        ref ids => {
            let names: Vec<String> = ids.iter().map(|id| format!("/dev/ublkb{id}")).collect();
            bail!("{volume} is the volume of {}: name one of these", names.join(" and "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Wishes, words};
    use super::*;

    #[test]
    fn devices_go_by_number_and_by_name() {
        assert_eq!(id_of("7").unwrap(), 7);
        assert_eq!(id_of("ublkb7").unwrap(), 7);
        assert_eq!(id_of("/dev/ublkb12").unwrap(), 12);
        assert!(id_of("/dev/sda").is_err());
    }

    #[test]
    fn one_that_fails_leaves_the_others_their_turn() {
        let mut had = Vec::new();
        let outcome = each(&[0, 1, 2, 3], |id| {
            had.push(*id);
            if id % 2 == 1 { bail!("{id} is in use") } else { Ok(()) }
        });
        assert_eq!(had, [0, 1, 2, 3]);
        assert_eq!(outcome.unwrap_err().to_string(), "3 is in use");
        assert!(each(&[0, 2], |_| Ok(())).is_ok());
    }

    #[test]
    fn a_volume_is_the_one_of_this_directory_and_of_one_device() {
        let record = |volume: &str, asked: &str| {
            let (volume, asked, wishes) = (volume.to_owned(), asked.to_owned(), Wishes::default());
            Record { volume, asked, read_only: false, program: None, server: 0, wishes }
        };
        let here = std::env::current_dir().unwrap().display().to_string();
        let noted = || {
            let each = [
                record("file:/srv/a/disk.img", "file:/srv/a/disk.img"),
                // As versions before this one have noted it, of another directory.
                record("file:/srv/b/disk.img", "disk.img"),
                record(&format!("file:{here}/disk.img"), &words("disk.img")),
                record("linear:(file:/srv/target,mem:1M)", &words("linear:(link,mem:1M)")),
                record("file:/srv/same", "file:/srv/same"),
                record("file:/srv/same", "/srv/link-to-it"),
            ];
            (0..).zip(each)
        };
        let id_of = |volume: &str| id_of_volume(volume, noted()).map_err(|error| error.to_string());
        assert_eq!(id_of("disk.img"), Ok(2));
        assert_eq!(id_of("./disk.img"), Ok(2));
        assert_eq!(id_of("/srv/a/disk.img"), Ok(0));
        assert_eq!(id_of("file:/srv/b/disk.img"), Ok(1));
        assert_eq!(id_of("linear:(link,mem:1M)"), Ok(3));
        assert_eq!(id_of(&format!("linear:({here}/link,mem:1M)")), Ok(3));
        assert_eq!(id_of("linear:(/srv/target,mem:1M)"), Ok(3));
        assert_eq!(id_of("/srv/link-to-it"), Ok(5));
        let said = id_of("/srv/same").unwrap_err();
        assert_eq!(
            said,
            "/srv/same is the volume of /dev/ublkb4 and /dev/ublkb5: name one of these"
        );
        assert!(id_of("disk").unwrap_err().contains("is no device of ublk"));
    }
}
