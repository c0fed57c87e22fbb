//! What the programs of volumes keep in their maps.

use super::Daemon;
use crate::control::method::{MapEntry, MapNow, ProgramNow, VolumeMaps, VolumePathsOf};
use crate::control::protocol::Failure;
use namespace::{MapReport, ProgramReport};

impl Daemon {
    /// The programs of the volumes that are meant: of a named one, or of all that have any.
    pub(super) fn volume_maps(&self, wanted: &VolumePathsOf) -> Result<Vec<VolumeMaps>, Failure> {
        let all = self.meant(wanted)?.map(|((nqn, nsid), volume)| VolumeMaps {
            nqn: nqn.clone(),
            nsid: *nsid,
            volume: volume.uri(),
            programs: volume.programs().into_iter().map(ProgramNow::from).collect(),
        });
        Ok(all.filter(|volume| !volume.programs.is_empty()).collect())
    }
}

impl From<ProgramReport> for ProgramNow {
    fn from(report: ProgramReport) -> ProgramNow {
        let ProgramReport { name, mistakes, maps } = report;
        ProgramNow { name, mistakes, maps: maps.into_iter().map(MapNow::from).collect() }
    }
}

impl From<MapReport> for MapNow {
    fn from(report: MapReport) -> MapNow {
        let MapReport { name, kind, entries_max, entries, left_out } = report;
        let entries = entries.iter().map(|(key, values)| MapEntry {
            key: hex(key),
            values: values.iter().map(|value| hex(value)).collect(),
        });
        MapNow { name, kind: kind.to_owned(), entries_max, entries: entries.collect(), left_out }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
