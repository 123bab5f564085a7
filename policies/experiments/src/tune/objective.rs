//! `--objective`: one number to make better, and bounds that others keep.
//!
//! ```text
//! objective  = goal { ";" bound }
//! goal       = [ "minimise" | "maximise" ] number
//! bound      = number ( ">=" | "<=" ) value
//! number     = [ statistic ] times | share | count      p95 ttft, goodput, throughput
//! value      = 500ms | 1.5s | 95% | 0.95 | 1000
//! ```

use pointsman_notation::instead;
use pointsman_sim::measure::{RunReport, TimeSpread};

use crate::simulate::time;

/// A number of the report, in millionths: of a second, of one, or of what is counted. Whole numbers
/// are the same in a file as in memory.
pub(super) type Micro = i64;

/// An objective.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Objective {
    pub(super) goal: Quantity,
    pub(super) aim: Aim,
    pub(super) bounds: Vec<Bound>,
}

/// The better direction of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    Least,
    Most,
}

/// A bound that a number keeps.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bound {
    pub(super) quantity: Quantity,
    /// [`Aim::Most`]: the number is at least the value.
    pub(super) side: Aim,
    pub(super) value: Micro,
}

/// A number of the report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Quantity {
    measure: &'static Measure,
    statistic: usize,
}

/// A number of the report, or a distribution of times.
#[derive(Debug)]
struct Measure {
    name: &'static str,
    aim: Aim,
    of: Of,
}

#[derive(Clone, Copy, Debug)]
enum Of {
    Times(fn(&RunReport) -> Option<&TimeSpread>),
    Share(fn(&RunReport) -> Option<f64>),
    Count(fn(&RunReport) -> f64),
}

/// A statistic of times: its name, and its value in ms.
type Statistic = (&'static str, fn(&TimeSpread) -> f64);

/// The statistics; the first is meant where none is named.
const STATISTICS: [Statistic; 6] = [
    ("mean", |times| times.mean),
    ("p50", |times| times.p50),
    ("p90", |times| times.p90),
    ("p95", |times| times.p95),
    ("p99", |times| times.p99),
    ("max", |times| times.max),
];

static MEASURES: [Measure; 12] = [
    times("ttft", |run| run.ttft_ms.as_ref()),
    times("wait", |run| run.wait_ms.as_ref()),
    times("itl", |run| run.itl_ms.as_ref()),
    times("tpot", |run| run.tpot_ms.as_ref()),
    times("whole", |run| run.whole_ms.as_ref()),
    of("goodput", Aim::Most, Of::Share(|run| Some(run.goodput))),
    of("hit-rate", Aim::Most, Of::Share(|run| Some(run.hit_rate))),
    of("fairness", Aim::Most, Of::Share(fairness)),
    of(
        "served",
        Aim::Most,
        Of::Share(|run| part(run, run.finished)),
    ),
    of(
        "refused",
        Aim::Least,
        Of::Share(|run| part(run, run.refused + run.expired + run.failed)),
    ),
    of(
        "throughput",
        Aim::Most,
        Of::Count(|run| run.output_tokens_per_s),
    ),
    of("evicted", Aim::Least, Of::Count(|run| count(run.evicted))),
];

const fn of(name: &'static str, aim: Aim, of: Of) -> Measure {
    Measure { name, aim, of }
}

const fn times(name: &'static str, times: fn(&RunReport) -> Option<&TimeSpread>) -> Measure {
    of(name, Aim::Least, Of::Times(times))
}

/// Jain's index; absent: nobody was served, which is no fair share.
fn fairness(run: &RunReport) -> Option<f64> {
    let is_any = run.tenants.iter().any(|tenant| tenant.tokens > 0);
    is_any.then_some(run.jain)
}

/// The part of all requests.
fn part(run: &RunReport, requests: u64) -> Option<f64> {
    Some(count(requests) / count(run.requests.max(1)))
}

#[expect(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn count(number: u64) -> f64 {
    number as f64
}

// === impl Measure ===

impl PartialEq for Measure {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

// === impl Quantity ===

impl Quantity {
    /// Its name, as it is written.
    pub(super) fn name(self) -> String {
        match self.measure.of {
            Of::Times(_) => format!("{} {}", STATISTICS[self.statistic].0, self.measure.name),
            Of::Share(_) | Of::Count(_) => self.measure.name.to_owned(),
        }
    }

    /// Its value of a run; absent: nobody was served, so there is none.
    pub(super) fn value(self, run: &RunReport) -> Option<Micro> {
        Some(match self.measure.of {
            Of::Times(times) => micro(STATISTICS[self.statistic].1(times(run)?) / 1000.0),
            Of::Share(share) => micro(share(run)?),
            Of::Count(count) => micro(count(run)),
        })
    }

    /// A value that is small for it: what differs by less than that differs by nothing to speak of. A hundred are
    /// neither small nor great.
    pub(super) fn grain(self) -> f64 {
        match self.measure.of {
            Of::Times(_) => 1e3,
            Of::Share(_) => 1e4,
            Of::Count(_) => 1e6,
        }
    }

    /// A value, as people read it.
    pub(super) fn shown(self, value: Option<Micro>) -> String {
        let Some(value) = value.map(float) else {
            return "-".to_owned();
        };
        match self.measure.of {
            Of::Times(_) => format!("{:.1} ms", value / 1e3),
            Of::Share(_) => format!("{:.2} %", value / 1e4),
            Of::Count(_) => format!("{:.1}", value / 1e6),
        }
    }

    /// Reads a value for it.
    fn parse(self, word: &Word<'_>) -> Result<Micro, String> {
        let text = word.text;
        let read = match self.measure.of {
            Of::Times(_) => time(text).ok().map(|time| {
                // Longer than any run.
                i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
            }),
            Of::Share(_) => match text.strip_suffix('%') {
                Some(percent) => number(percent).map(|percent| micro(percent / 100.0)),
                None => number(text).filter(|share| *share <= 1.0).map(micro),
            },
            Of::Count(_) => number(text).map(micro),
        };
        let such = match self.measure.of {
            Of::Times(_) => "a time such as 500ms or 1.5s",
            Of::Share(_) => "a share such as 95% or 0.95",
            Of::Count(_) => "a number",
        };
        read.ok_or_else(|| word.wrong(&format!("{} is {such}, not `{text}`", self.name())))
    }
}

fn number(text: &str) -> Option<f64> {
    let number: f64 = text.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

#[expect(clippy::cast_possible_truncation, reason = "saturates")]
fn micro(value: f64) -> Micro {
    (value * 1e6).round() as Micro
}

#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of a report are below 2^53"
)]
pub(super) fn float(value: Micro) -> f64 {
    value as f64
}

// === impl Objective ===

impl Objective {
    /// Reads an objective.
    ///
    /// # Errors
    /// The place of the mistake, and what there is instead.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut from = 0;
        let mut parts = text.split(';').map(|part| {
            let words = words(part, from);
            from += part.chars().count() + 1;
            words
        });
        let first = parts.next().unwrap_or_default();
        let (aim, first) = aim(&first);
        let (goal, rest) = quantity(first, text)?;
        if let Some(word) = rest.first() {
            let why = "the first part is one number; bounds of others follow after a `;`";
            return Err(word.wrong(why));
        }
        let mut bounds = Vec::new();
        for part in parts.filter(|part| !part.is_empty()) {
            bounds.push(bound(&part, text)?);
        }
        Ok(Self {
            goal,
            aim: aim.unwrap_or(goal.measure.aim),
            bounds,
        })
    }

    /// The numbers that it looks at of a run; all are absent where nobody was served to the end.
    pub(super) fn numbers(&self, run: &RunReport) -> Vec<Option<Micro>> {
        let all = self.quantities().into_iter();
        all.map(|it| it.value(run).filter(|_| run.finished > 0))
            .collect()
    }

    /// The numbers that it looks at: the goal, then each bound's that is another.
    pub(super) fn quantities(&self) -> Vec<Quantity> {
        let mut all = vec![self.goal];
        for bound in &self.bounds {
            if !all.contains(&bound.quantity) {
                all.push(bound.quantity);
            }
        }
        all
    }
}

/// A word, and its place, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word<'a> {
    text: &'a str,
    at: usize,
}

impl Word<'_> {
    fn wrong(&self, why: &str) -> String {
        format!("character {}: {why}", self.at)
    }
}

/// The words of a part that begins after so many characters. The sign of a bound is one, with or
/// without spaces around it.
fn words(part: &str, from: usize) -> Vec<Word<'_>> {
    let kind = |letter: char| (!letter.is_whitespace()).then(|| "<>=".contains(letter));
    let mut words = Vec::new();
    let mut begun: Option<(usize, usize, bool)> = None;
    let letters = part.char_indices().enumerate();
    let letters = letters.map(|(nth, (at, letter))| (nth, at, kind(letter)));
    for (nth, at, kind) in letters.chain([(0, part.len(), None)]) {
        if let Some((start, place, was)) = begun
            && kind != Some(was)
        {
            let text = &part[start..at];
            words.push(Word { text, at: place });
            begun = None;
        }
        if let (None, Some(kind)) = (begun, kind) {
            begun = Some((at, from + nth + 1, kind));
        }
    }
    words
}

/// The direction, if the first word is one.
fn aim<'a, 'w>(words: &'w [Word<'a>]) -> (Option<Aim>, &'w [Word<'a>]) {
    let first = words.first().map(|word| word.text);
    let aim = match first {
        Some("minimise" | "minimize") => Aim::Least,
        Some("maximise" | "maximize") => Aim::Most,
        Some(_) | None => return (None, words),
    };
    (Some(aim), &words[1..])
}

/// The number that the words begin with, and those after it.
fn quantity<'a, 'w>(
    words: &'w [Word<'a>],
    text: &str,
) -> Result<(Quantity, &'w [Word<'a>]), String> {
    let end = Word {
        text: "",
        at: text.chars().count() + 1,
    };
    let first = words.first().unwrap_or(&end);
    let statistic = STATISTICS.iter().position(|(name, _)| *name == first.text);
    let (named, rest) = match statistic {
        Some(_) => (words.get(1).unwrap_or(&end), words.get(2..)),
        None => (first, words.get(1..)),
    };
    let measure = MEASURES.iter().find(|it| it.name == named.text);
    let measure = measure.ok_or_else(|| unknown(named, &names(statistic)))?;
    if statistic.is_some() && !matches!(measure.of, Of::Times(_)) {
        let why = format!("{} is one number and has no {}", measure.name, first.text);
        return Err(first.wrong(&why));
    }
    let statistic = statistic.unwrap_or(0);
    Ok((Quantity { measure, statistic }, rest.unwrap_or_default()))
}

/// The names that may stand where a statistic does or does not stand before.
fn names(statistic: Option<usize>) -> Vec<&'static str> {
    let is_time = |measure: &&Measure| matches!(measure.of, Of::Times(_));
    if statistic.is_some() {
        return MEASURES.iter().filter(is_time).map(|it| it.name).collect();
    }
    let measures = MEASURES.iter().map(|it| it.name);
    measures
        .chain(STATISTICS.iter().map(|(name, _)| *name))
        .collect()
}

fn unknown(word: &Word<'_>, names: &[&str]) -> String {
    let instead = instead(word.text, names);
    match word.text {
        "" => word.wrong(&format!("a number of the report is missing; {instead}")),
        text => word.wrong(&format!("there is no number `{text}`; {instead}")),
    }
}

fn bound(words: &[Word<'_>], text: &str) -> Result<Bound, String> {
    let (quantity, rest) = quantity(words, text)?;
    let end = Word {
        text: "",
        at: text.chars().count() + 1,
    };
    let sign = rest.first().unwrap_or(&end);
    let side = match sign.text {
        ">=" => Aim::Most,
        "<=" => Aim::Least,
        _ => {
            let name = quantity.name();
            return Err(sign.wrong(&format!("`>=` or `<=` and a value must follow `{name}`")));
        }
    };
    let value = rest.get(1).unwrap_or(&end);
    if let Some(word) = rest.get(2) {
        return Err(word.wrong("a bound has one value: other bounds follow after a `;`"));
    }
    Ok(Bound {
        quantity,
        side,
        value: quantity.parse(value)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_and_bounds_are_read_with_their_units() {
        let text = "p95 ttft; goodput >= 95%;mean wait<=1.5s ; refused <= 0.01";
        let read = Objective::parse(text).unwrap();
        assert_eq!(
            (read.goal.name().as_str(), read.aim),
            ("p95 ttft", Aim::Least)
        );
        let bounds = read.bounds.iter();
        let bounds = bounds.map(|it| (it.quantity.name(), it.side, it.value));
        let bounds: Vec<_> = bounds.collect();
        assert_eq!(
            bounds,
            [
                ("goodput".to_owned(), Aim::Most, 950_000),
                ("mean wait".to_owned(), Aim::Least, 1_500_000),
                ("refused".to_owned(), Aim::Least, 10_000),
            ]
        );
        let run = RunReport {
            requests: 4,
            failed: 1,
            ..RunReport::default()
        };
        assert_eq!(read.bounds[2].quantity.value(&run), Some(250_000));
        assert_eq!(read.quantities().len(), 4);
        let none = read.goal.value(&run);
        assert_eq!((none, read.goal.shown(none).as_str()), (None, "-"));
        let fairness = Objective::parse("fairness").unwrap().goal;
        assert_eq!(fairness.value(&run), None, "nobody was served");
        let goodput = Objective::parse("goodput").unwrap();
        assert_eq!(goodput.numbers(&run), [None], "nobody was served");
        let served = RunReport { finished: 1, ..run };
        assert_eq!(goodput.numbers(&served), [Some(0)]);
    }

    #[test]
    fn a_number_has_a_better_direction_unless_another_is_named() {
        let aim = |text| Objective::parse(text).unwrap().aim;
        assert_eq!(aim("goodput"), Aim::Most);
        assert_eq!(aim("ttft"), Aim::Least);
        assert_eq!(aim("minimise throughput"), Aim::Least);
    }

    #[test]
    fn a_mistake_is_told_with_its_place_and_what_was_meant() {
        let said = |text| Objective::parse(text).unwrap_err();
        assert_eq!(
            said("p95 tfft"),
            "character 5: there is no number `tfft`; did you mean `ttft`?"
        );
        assert_eq!(
            said("p95 ttft; godput >= 95%"),
            "character 11: there is no number `godput`; did you mean `goodput`?"
        );
        assert_eq!(
            said("p95 ttft; goodput >= 950"),
            "character 22: goodput is a share such as 95% or 0.95, not `950`"
        );
        assert_eq!(
            said("ttft; wait <= 5"),
            "character 15: mean wait is a time such as 500ms or 1.5s, not `5`"
        );
        assert_eq!(
            said("p99 goodput"),
            "character 1: goodput is one number and has no p99"
        );
        assert_eq!(
            said("ttft; goodput"),
            "character 14: `>=` or `<=` and a value must follow `goodput`"
        );
        assert!(said("p95 ttft goodput").starts_with("character 10: the first part is one number"));
        assert!(said("").starts_with("character 1: a number of the report is missing"));
        assert!(said("p95").starts_with("character 4: a number of the report is missing; there"));
    }
}
