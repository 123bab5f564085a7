//! The date in the formats of chat templates.

use std::fmt::Write;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// Weekdays from the first of January 1970 on.
const WEEKDAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

const DAY: u64 = 24 * 60 * 60;
/// Years, and days, after which the calendar repeats.
const CYCLE_YEARS: u64 = 400;
const CYCLE_DAYS: u64 = 146_097;

struct Date {
    year: u64,
    /// Month, from 0.
    month: usize,
    /// Day of the month, from 1.
    day: u64,
    /// Day of the year, from 1.
    day_of_year: u64,
    weekday: &'static str,
}

/// Formats a moment, given in seconds since 1970 UTC, as Python's `strftime` does. The error is the
/// letter that is not known here.
pub(super) fn strftime(format: &str, seconds: u64) -> Result<String, char> {
    let date = date(seconds / DAY);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let month = MONTHS[date.month];
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let written = match letters.next().unwrap_or('%') {
            'Y' => write!(text, "{}", date.year),
            'y' => write!(text, "{:02}", date.year % 100),
            'm' => write!(text, "{:02}", date.month + 1),
            'B' => write!(text, "{month}"),
            'b' => write!(text, "{}", &month[..3]),
            'd' => write!(text, "{:02}", date.day),
            'j' => write!(text, "{:03}", date.day_of_year),
            'A' => write!(text, "{}", date.weekday),
            'a' => write!(text, "{}", &date.weekday[..3]),
            'H' => write!(text, "{hour:02}"),
            'M' => write!(text, "{minute:02}"),
            'S' => write!(text, "{second:02}"),
            '%' => write!(text, "%"),
            unknown => return Err(unknown),
        };
        written.expect("a string takes any text");
    }
    Ok(text)
}

fn date(days: u64) -> Date {
    let weekday = WEEKDAYS[(days % 7) as usize];
    let mut year = 1970 + days / CYCLE_DAYS * CYCLE_YEARS;
    let mut day = days % CYCLE_DAYS;
    while day >= days_in_year(year) {
        day -= days_in_year(year);
        year += 1;
    }
    let day_of_year = day + 1;
    let mut month = 0;
    while day >= days_in_month(year, month) {
        day -= days_in_month(year, month);
        month += 1;
    }
    Date {
        year,
        month,
        day: day + 1,
        day_of_year,
        weekday,
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in_year(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

/// Counts the days of a month, numbered from 0.
fn days_in_month(year: u64, month: usize) -> u64 {
    match month {
        1 => 28 + u64::from(is_leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "%a %A %d %b %B %m %y %Y %j %H:%M:%S %%";

    #[track_caller]
    fn check(seconds: u64, expected: &str) {
        assert_eq!(strftime(ALL, seconds).as_deref(), Ok(expected));
    }

    /// Expected texts by `date -u -d @SECONDS +FORMAT`.
    #[test]
    fn writes_dates_as_other_programs_do() {
        check(0, "Thu Thursday 01 Jan January 01 70 1970 001 00:00:00 %");
        check(
            951_782_399,
            "Mon Monday 28 Feb February 02 00 2000 059 23:59:59 %",
        );
        check(
            951_868_799,
            "Tue Tuesday 29 Feb February 02 00 2000 060 23:59:59 %",
        );
        check(
            1_735_689_599,
            "Tue Tuesday 31 Dec December 12 24 2024 366 23:59:59 %",
        );
        check(
            4_107_542_400,
            "Mon Monday 01 Mar March 03 00 2100 060 00:00:00 %",
        );
        check(
            13_574_563_200,
            "Tue Tuesday 29 Feb February 02 00 2400 060 00:00:00 %",
        );
    }

    #[test]
    fn names_the_letter_it_does_not_know() {
        assert_eq!(strftime("%d %Q", 0), Err('Q'));
    }
}
