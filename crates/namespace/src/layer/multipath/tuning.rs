//! The settings as text: in URIs, and as they are changed at run time.

use super::Standby;
use crate::human::{format_duration, parse_duration};
use multipath::Settings;
use std::io;
use std::time::Duration;

/// Names of all settings.
pub const SETTINGS: [&str; 5] =
    ["policy", "latency_ewma_shift", "latency_batch_timeout", "numa_bias", "standby"];

/// All that can be changed while a volume is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Policy and its tunables.
    pub settings: Settings,
    /// Paths for when no other can be used.
    pub standby: Standby,
}

/// With no path on standby.
impl From<Settings> for Tuning {
    fn from(settings: Settings) -> Tuning {
        Tuning { settings, standby: Standby::default() }
    }
}

/// Changes the setting `name`. An error of kind `Unsupported` says that there is no such setting,
/// one of kind `InvalidInput` what its value can be.
pub fn set(tuning: &mut Tuning, name: &str, value: &str) -> io::Result<()> {
    let settings = &mut tuning.settings;
    match name {
        "policy" => settings.policy = value.parse().map_err(|known| wrong(name, value, &known))?,
        "latency_ewma_shift" => {
            let shift = value.parse().ok().filter(|&shift| shift <= Settings::SHIFT_MAX);
            settings.latency_ewma_shift = shift.ok_or_else(|| wrong(name, value, &"0 to 8"))?;
        }
        "latency_batch_timeout" => {
            settings.latency_batch_timeout_ns = match value {
                "default" => None,
                time => {
                    let time = nanoseconds(time).filter(|&time| time > 0);
                    let expected = "a time like 1ms, or default";
                    Some(time.ok_or_else(|| wrong(name, value, &expected))?)
                }
            }
        }
        "numa_bias" => {
            let time = nanoseconds(value);
            settings.numa_bias_ns =
                time.ok_or_else(|| wrong(name, value, &"a time like 20us, or 0"))?;
        }
        "standby" => tuning.standby = value.parse().map_err(|known| wrong(name, value, &known))?,
        _ => {
            let what = format!("{name}: no setting of multipath; it has {}", SETTINGS.join(", "));
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
    }
    Ok(())
}

/// What differs from the defaults, as `name=value`.
pub fn differing(Tuning { settings, standby }: &Tuning) -> Vec<String> {
    let usual = Settings::default();
    let time = |ns| format_duration(Duration::from_nanos(ns));
    let mut said = Vec::new();
    if settings.policy != usual.policy {
        said.push(format!("policy={}", settings.policy));
    }
    if settings.latency_ewma_shift != usual.latency_ewma_shift {
        said.push(format!("latency_ewma_shift={}", settings.latency_ewma_shift));
    }
    if let Some(ns) = settings.latency_batch_timeout_ns {
        said.push(format!("latency_batch_timeout={}", time(ns)));
    }
    if settings.numa_bias_ns != usual.numa_bias_ns {
        said.push(format!("numa_bias={}", time(settings.numa_bias_ns)));
    }
    if !standby.is_empty() {
        said.push(format!("standby={standby}"));
    }
    said
}

/// All of them with their values, for people.
pub fn describe(Tuning { settings, standby }: &Tuning, facts: &mut Vec<(String, String)>) {
    let time = |ns| format_duration(Duration::from_nanos(ns));
    facts.push(("policy".into(), settings.policy.to_string()));
    facts.push(("latency_ewma_shift".into(), settings.latency_ewma_shift.to_string()));
    facts.push(("latency_batch_timeout".into(), time(settings.batch_ns())));
    facts.push(("numa_bias".into(), time(settings.numa_bias_ns)));
    facts.push(("standby".into(), standby.to_string()));
}

fn nanoseconds(text: &str) -> Option<u64> {
    u64::try_from(parse_duration(text)?.as_nanos()).ok()
}

fn wrong(name: &str, value: &str, expected: &dyn std::fmt::Display) -> io::Error {
    let what = format!("{name} cannot be {value:?}; give {expected}");
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::ErrorKind::{InvalidInput, Unsupported};
    use multipath::Policy;

    #[test]
    fn settings_are_read_and_told() {
        let mut tuning = Tuning::default();
        assert_eq!(differing(&tuning), [""; 0]);
        let said = [
            ("policy", "latency"),
            ("latency_ewma_shift", "8"),
            ("latency_batch_timeout", "100ms"),
            ("numa_bias", "0"),
            ("standby", "2+192.0.2.3"),
        ];
        for (name, value) in said {
            set(&mut tuning, name, value).unwrap();
        }
        assert_eq!(tuning.settings.policy, Policy::Latency);
        assert_eq!(tuning.settings.batch_ns(), 100_000_000);
        assert_eq!(differing(&tuning), said.map(|(name, value)| format!("{name}={value}")));
        set(&mut tuning, "latency_batch_timeout", "default").unwrap();
        assert_eq!(tuning.settings.batch_ns(), 15_000_000_000);
        set(&mut tuning, "standby", "none").unwrap();
        assert!(tuning.standby.is_empty());
    }

    #[test]
    fn mistakes_are_named() {
        let before = Tuning::default();
        for (name, value, kind, word) in [
            ("policy", "fastest", InvalidInput, "round-robin"),
            ("latency_ewma_shift", "9", InvalidInput, "0 to 8"),
            ("latency_ewma_shift", "-1", InvalidInput, "0 to 8"),
            ("latency_batch_timeout", "0", InvalidInput, "1ms"),
            ("latency_batch_timeout", "15", InvalidInput, "1ms"),
            ("numa_bias", "far", InvalidInput, "20us"),
            ("standby", "a,b", InvalidInput, "192.0.2.2"),
            ("iopolicy", "numa", Unsupported, "latency_ewma_shift"),
        ] {
            let mut tuning = before.clone();
            let error = set(&mut tuning, name, value).unwrap_err();
            assert_eq!(error.kind(), kind, "{name}={value}");
            assert!(error.to_string().contains(word), "{error}");
            assert_eq!(tuning, before);
        }
    }
}
