//! Ways that data takes between a request and the volume, and which one is taken.

use crate::driver::flag;
use crate::features::Features;
use std::fmt;

/// How data gets from a request to the volume and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPath {
    /// The driver copies it to and from memory of the server's that belongs to the request's tag.
    Copy,
    /// The server copies it to and from whatever memory it likes, by pread and pwrite.
    UserCopy,
    /// The request's pages are registered with the server's ring, and given to the volume as they
    /// are.
    ZeroCopy,
}

/// A way that cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The driver is too old.
    #[error(
        "{path} needs {flag}, which the driver of this kernel lacks; `--auto` takes the best that there is"
    )]
    Driver {
        /// Which way.
        path: DataPath,
        /// What is missing.
        flag: &'static str,
    },
    /// The volume needs to see its data.
    #[error(
        "zero copy needs a volume made of files, devices and remote namespaces without data digests and TLS alone; `--auto` \
         takes the best for this one"
    )]
    Volume,
}

impl DataPath {
    /// The best way that the driver and the volume allow, or the one asked for.
    pub fn choose(
        asked: Option<DataPath>,
        driver: Features,
        takes_registered: bool,
    ) -> Result<DataPath, PathError> {
        let can = |path: DataPath| match path.missing(driver) {
            Some(flag) => Err(PathError::Driver { path, flag }),
            None if path == DataPath::ZeroCopy && !takes_registered => Err(PathError::Volume),
            None => Ok(path),
        };
        match asked {
            Some(path) => can(path),
            None => can(DataPath::ZeroCopy)
                .or_else(|_| can(DataPath::UserCopy))
                .or_else(|_| can(DataPath::Copy)),
        }
    }

    /// The flag without which it cannot be.
    fn missing(self, driver: Features) -> Option<&'static str> {
        match self {
            DataPath::Copy => None,
            DataPath::UserCopy if driver.has(flag::USER_COPY) => None,
            DataPath::UserCopy => Some("UBLK_F_USER_COPY"),
            // Where a request's pages cannot be registered, its data is copied by the server.
            DataPath::ZeroCopy if !driver.has(flag::USER_COPY) => Some("UBLK_F_USER_COPY"),
            DataPath::ZeroCopy if !driver.has(flag::AUTO_BUF_REG) => Some("UBLK_F_AUTO_BUF_REG"),
            DataPath::ZeroCopy => None,
        }
    }

    /// The device's flags for it.
    pub fn flags(self) -> u64 {
        match self {
            DataPath::Copy => 0,
            DataPath::UserCopy => flag::USER_COPY,
            DataPath::ZeroCopy => flag::USER_COPY | flag::SUPPORT_ZERO_COPY | flag::AUTO_BUF_REG,
        }
    }

    /// Which one a device was made for.
    pub fn of_flags(flags: u64) -> DataPath {
        match flags {
            _ if flags & flag::AUTO_BUF_REG != 0 => DataPath::ZeroCopy,
            _ if flags & flag::USER_COPY != 0 => DataPath::UserCopy,
            _ => DataPath::Copy,
        }
    }
}

impl fmt::Display for DataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DataPath::Copy => "copy",
            DataPath::UserCopy => "user copy",
            DataPath::ZeroCopy => "zero copy",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_way_is_taken_that_both_ends_allow() {
        let all = Features::new(u64::MAX);
        let some = Features::new(flag::USER_COPY);
        let none = Features::new(0);
        let choose = |asked, driver, takes| DataPath::choose(asked, driver, takes);
        assert_eq!(choose(None, all, true), Ok(DataPath::ZeroCopy));
        assert_eq!(choose(None, all, false), Ok(DataPath::UserCopy));
        assert_eq!(choose(None, some, true), Ok(DataPath::UserCopy));
        assert_eq!(choose(None, none, true), Ok(DataPath::Copy));
        assert_eq!(choose(Some(DataPath::Copy), all, true), Ok(DataPath::Copy));
        assert_eq!(choose(Some(DataPath::ZeroCopy), all, false), Err(PathError::Volume));
        assert!(matches!(
            choose(Some(DataPath::ZeroCopy), some, true),
            Err(PathError::Driver { flag: "UBLK_F_AUTO_BUF_REG", .. })
        ));
        for path in [DataPath::Copy, DataPath::UserCopy, DataPath::ZeroCopy] {
            assert_eq!(DataPath::of_flags(path.flags()), path);
        }
    }
}
