//! Traces in the format of the Azure public dataset: times, prompt lengths and answer lengths.

use pointsman_core::Micros;

use super::{Arrival, Listed, PromptText, Roll, TraceError};
use crate::numbers::from_secs;

/// The first line of a trace, by which its columns are known.
const COLUMNS: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];

/// Reads a trace. Its first request comes at time zero.
///
/// # Errors
/// If a line is not of the format, or there is none.
pub fn azure(text: &str) -> Result<Listed, TraceError> {
    let mut lines = text.lines().enumerate();
    let heading = lines.next().map_or("", |(_, line)| line);
    let columns: Vec<&str> = heading.split(',').map(str::trim).collect();
    if columns != COLUMNS {
        return Err(TraceError::line(
            0,
            format!("the columns must be {}", COLUMNS.join(",")),
        ));
    }
    let mut arrivals = Vec::new();
    for (idx, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let &[time, context, generated] = cells.as_slice() else {
            return Err(TraceError::line(idx, "there must be three columns"));
        };
        let at = time_of(time).ok_or_else(|| {
            TraceError::line(
                idx,
                format!("{time:?} is no time like 2023-11-16 18:15:46.68"),
            )
        })?;
        let count = |text: &str| {
            let number = text.parse::<u32>().ok();
            number.ok_or_else(|| TraceError::line(idx, format!("{text:?} is no number of tokens")))
        };
        let prompt = PromptText::unlike_others(count(context)?);
        arrivals.push(Arrival::new(at, prompt, count(generated)?));
    }
    let first = arrivals.iter().map(|arrival| arrival.at).min();
    let first = first.ok_or(TraceError::Empty)?;
    for arrival in &mut arrivals {
        arrival.at = arrival.at.since(first);
    }
    Ok(Listed::new(Roll::single(), arrivals))
}

/// A time as microseconds of some calendar, in UTC where it says its distance from that.
fn time_of(text: &str) -> Option<Micros> {
    let (date, time) = text.split_once(' ')?;
    let (time, east) = split_zone(time)?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.splitn(3, ':');
    let (hour, minute) = (
        time.next()?.parse::<u64>().ok()?,
        time.next()?.parse::<u64>().ok()?,
    );
    let second: f64 = time.next()?.parse().ok()?;
    let within = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60;
    if !(within && (0.0..61.0).contains(&second)) {
        return None;
    }
    let minutes = (days(year, month, day) * 24 + hour) * 60 + minute;
    let minutes = minutes.checked_add_signed(-east)?;
    Some(Micros(minutes * 60_000_000).after(from_secs(second)))
}

/// Takes the distance from UTC, `Z` or `+HH:MM`, off the end of a time. In minutes to the east; 0 where nothing
/// is said.
fn split_zone(time: &str) -> Option<(&str, i64)> {
    if let Some(time) = time.strip_suffix('Z') {
        return Some((time, 0));
    }
    let Some(at) = time.find(['+', '-']) else {
        return Some((time, 0));
    };
    let (time, zone) = time.split_at(at);
    let (sign, zone) = zone.split_at(1);
    let (hours, minutes) = zone.split_once(':')?;
    let hours = i64::from(hours.parse::<u8>().ok().filter(|hours| *hours < 24)?);
    let minutes = i64::from(minutes.parse::<u8>().ok().filter(|it| *it < 60)?);
    let distance = hours * 60 + minutes;
    Some((time, if sign == "-" { -distance } else { distance }))
}

/// Days of the Gregorian calendar up to a date, counted from the first of March of the year 0.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year.saturating_sub(1), month + 9)
    };
    365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1
}

#[cfg(test)]
mod tests {
    use super::super::Workload;
    use super::*;

    #[test]
    fn times_are_counted_from_the_first_request() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                    2023-11-30 23:59:59.5000000,374,44\n\
                    2023-12-01 00:00:00.7500000,396,109\n";
        let mut trace = azure(text).unwrap();
        let first = trace.pop().unwrap();
        assert_eq!(
            (first.at, first.prompt.tokens, first.output_tokens),
            (Micros(0), 374, 44)
        );
        assert_eq!(trace.pop().unwrap().at, Micros(1_250_000));
    }

    #[test]
    fn times_may_say_their_distance_from_utc() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                    2024-05-10 00:00:00.009930+00:00,2162,5\n\
                    2024-05-10 00:00:01+00:00,2399,6\n\
                    2024-05-10 02:00:02.009930+02:00,76,15\n\
                    2024-05-09 18:30:03.009930-05:30,2376,3\n\
                    2024-05-10 00:00:04.009930Z,1,1\n";
        let mut trace = azure(text).unwrap();
        let times = std::iter::from_fn(|| trace.pop()).map(|arrival| arrival.at.0);
        let times: Vec<u64> = times.collect();
        assert_eq!(times, [0, 990_070, 2_000_000, 3_000_000, 4_000_000]);
        for zone in ["+24:00", "+01:60", "+01", "-", "+1:2:3", "ZZ"] {
            let time = format!("2024-05-10 00:00:00{zone}");
            assert_eq!(time_of(&time), None, "{time}");
        }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(days(2024, 3, 1) - days(2024, 2, 28), 2);
        assert_eq!(days(2023, 3, 1) - days(2023, 2, 28), 1);
        assert_eq!(days(2000, 1, 1) - days(1970, 1, 1), 10_957);
    }

    #[test]
    fn what_is_no_trace_is_refused_with_the_line() {
        let refused = |text: &str| azure(text).unwrap_err().to_string();
        assert!(refused("a,b\n").starts_with("line 1: the columns must be TIMESTAMP,"));
        let head = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
        assert!(refused(&format!("{head}yesterday,1,1")).starts_with("line 2: \"yesterday\""));
        assert!(
            refused(&format!("{head}2023-11-30 23:59:59,-1,1")).ends_with("no number of tokens")
        );
        assert_eq!(refused(head), "there is no request in it");
    }
}
