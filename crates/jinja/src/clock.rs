//! The date and time that `strftime_now` writes.

use jiff::Zoned;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// Source of `strftime_now`'s time.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    /// The machine's local time.
    #[default]
    Local,
    /// A fixed date and time, in UTC.
    Fixed(DateTime),
}

impl Clock {
    /// The time by a format of `strftime`.
    pub(crate) fn strftime(&self, format: &str) -> Result<String, String> {
        let now = match self {
            Clock::Local => Zoned::now(),
            Clock::Fixed(time) => time.to_zoned(TimeZone::UTC).map_err(|e| e.to_string())?,
        };
        jiff::fmt::strtime::format(format, &now).map_err(|e| format!("strftime_now({format:?}): {e}"))
    }
}
