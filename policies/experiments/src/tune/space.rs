//! The settings that are searched, each as a line from 0 to 1.

use anyhow::{Result, bail, ensure};
use pointsman_component::{SettingRange, SettingSchema};
use pointsman_notation::{Time, instead};
use serde::Deserialize;
use serde_json::{Map, Value};

/// A value of each searched setting: a number, the place of a choice, or 0 and 1 for false and true;
/// absent: the setting is left out, and means something of its own.
pub(super) type Point = Vec<Option<u64>>;

/// The widest range whose values are spread evenly. In a wider one the small values are as near to
/// each other as the large ones: the line is that of fourth roots.
const EVEN_MAX: u64 = 1000;

/// The part of the line on which a setting is left out, where it may be.
const LEFT_OUT: f64 = 0.125;

/// The settings that are searched.
#[derive(Clone, Debug)]
pub(super) struct Space {
    dims: Vec<Dim>,
    /// The settings before, those that are not searched among them.
    before: Map<String, Value>,
}

/// One setting.
#[derive(Clone, Debug)]
pub(super) struct Dim {
    pub(super) key: String,
    values: SettingRange,
    default: Option<u64>,
    may_be_left_out: bool,
    /// The value before.
    before: Option<u64>,
}

// === impl Space ===

impl Space {
    /// The settings of a policy: all that have a range, or those that are named.
    ///
    /// # Errors
    /// If a named one is not there or has no range, or nothing is left to search.
    pub(super) fn new(
        described: &[SettingSchema],
        only: &[String],
        before: &Map<String, Value>,
    ) -> Result<Self> {
        for key in only {
            searchable(described, key)?;
        }
        let is_meant = |it: &&SettingSchema| only.is_empty() || only.contains(&it.key);
        let dims = described.iter().filter(is_meant);
        let dims: Vec<Dim> = dims.filter_map(|it| Dim::new(it, before)).collect();
        ensure!(
            !dims.is_empty(),
            "the policy describes no setting with a range, so there is nothing to search: \
             `pointsman policy inspect` shows its settings"
        );
        let before = before.clone();
        Ok(Self { dims, before })
    }

    pub(super) fn dims(&self) -> &[Dim] {
        &self.dims
    }

    /// The settings before.
    pub(super) fn start(&self) -> Point {
        self.dims.iter().map(|dim| dim.before).collect()
    }

    /// The table of settings at a point: those that the table before has, and those that are not the
    /// default.
    pub(super) fn table(&self, point: &Point) -> Map<String, Value> {
        let mut table = self.before.clone();
        for (dim, value) in self.dims.iter().zip(point) {
            match value {
                Some(_) if *value == dim.default && !table.contains_key(&dim.key) => {}
                Some(value) => {
                    table.insert(dim.key.clone(), dim.json(*value));
                }
                None => {
                    table.remove(&dim.key);
                }
            }
        }
        table
    }
}

fn searchable(described: &[SettingSchema], key: &str) -> Result<()> {
    let Some(found) = described.iter().find(|it| it.key == key) else {
        let known: Vec<&str> = described.iter().map(|it| it.key.as_str()).collect();
        bail!(
            "--only {key}: the policy has no such setting; {}",
            instead(key, &known)
        );
    };
    if let SettingRange::Other(words) = &found.values {
        bail!("--only {key}: it has no range that could be searched, but is {words}");
    }
    Ok(())
}

// === impl Dim ===

impl Dim {
    fn new(described: &SettingSchema, before: &Map<String, Value>) -> Option<Self> {
        if matches!(described.values, SettingRange::Other(_)) {
            return None;
        }
        let mut dim = Self {
            key: described.key.clone(),
            values: described.values.clone(),
            default: None,
            may_be_left_out: described.default.is_none(),
            before: None,
        };
        let default = described.default_written();
        let default = default.and_then(|json| serde_json::from_str(&json).ok());
        dim.default = default.and_then(|value| dim.place(&value));
        let before = before.get(&dim.key).and_then(|value| dim.place(value));
        dim.before = before.or(dim.default);
        Some(dim)
    }

    /// The place of a value of the settings' table.
    fn place(&self, value: &Value) -> Option<u64> {
        match &self.values {
            SettingRange::Number(_) => value.as_u64(),
            SettingRange::Duration(unit, _) => unit.count(Time::deserialize(value).ok()?),
            SettingRange::YesOrNo => value.as_bool().map(u64::from),
            SettingRange::Choice(texts) => {
                let place = texts.iter().position(|text| value == text.as_str())?;
                u64::try_from(place).ok()
            }
            SettingRange::Other(_) => None,
        }
    }

    /// A value for the settings' table.
    fn json(&self, value: u64) -> Value {
        match &self.values {
            SettingRange::YesOrNo => Value::from(value > 0),
            SettingRange::Choice(texts) => {
                let text = usize::try_from(value).ok().and_then(|at| texts.get(at));
                Value::from(text.map_or("", String::as_str))
            }
            SettingRange::Duration(unit, _) => Value::from(unit.of(value).to_string()),
            SettingRange::Number(_) | SettingRange::Other(_) => Value::from(value),
        }
    }

    /// A value as people read it.
    pub(super) fn shown(&self, value: Option<u64>) -> String {
        let Some(value) = value else {
            return "left out".to_owned();
        };
        let json = self.json(value);
        let text = json.as_str().map(str::to_owned);
        text.unwrap_or_else(|| json.to_string())
    }

    /// True if near values are alike.
    fn is_scale(&self) -> bool {
        match &self.values {
            SettingRange::Number(_) | SettingRange::Duration(..) => true,
            SettingRange::YesOrNo | SettingRange::Choice(_) | SettingRange::Other(_) => false,
        }
    }

    /// The least and the most.
    fn ends(&self) -> (u64, u64) {
        match &self.values {
            SettingRange::Number(range) | SettingRange::Duration(_, range) => {
                (*range.start(), *range.end())
            }
            SettingRange::YesOrNo => (0, 1),
            SettingRange::Choice(texts) => {
                let last = texts.len().saturating_sub(1);
                (0, u64::try_from(last).unwrap_or(u64::MAX))
            }
            SettingRange::Other(_) => (0, 0),
        }
    }

    /// The value at a place of the line.
    pub(super) fn at(&self, place: f64) -> Option<u64> {
        let mut place = place.clamp(0.0, 1.0);
        if self.may_be_left_out {
            if place < LEFT_OUT {
                return None;
            }
            place = (place - LEFT_OUT) / (1.0 - LEFT_OUT);
        }
        let (least, most) = self.ends();
        let span = most - least;
        if !self.is_scale() {
            // Each has an equal part of the line.
            return Some(least + floored(place * (float(span) + 1.0)).min(span));
        }
        if span > EVEN_MAX {
            place = place * place * place * place;
        }
        Some(least + floored(place * float(span) + 0.5).min(span))
    }

    /// The place of a value on the line, as [`at`](Self::at) has it.
    fn place_on_line(&self, value: u64) -> f64 {
        let (least, most) = self.ends();
        let span = most - least;
        let mut place = float(value.saturating_sub(least)) / float(span.max(1));
        if span > EVEN_MAX {
            place = place.sqrt().sqrt();
        }
        if self.may_be_left_out {
            place = LEFT_OUT + place * (1.0 - LEFT_OUT);
        }
        place
    }

    /// Values around one, so far away on the line: of a choice, all others.
    pub(super) fn around(&self, value: Option<u64>, step: f64) -> Vec<Option<u64>> {
        let (least, most) = self.ends();
        let mut around = match value {
            _ if !self.is_scale() => (least..=most).map(Some).collect(),
            Some(at) => {
                let place = self.place_on_line(at);
                let mut near = vec![self.at(place - step), self.at(place + step)];
                if near[1] == value && at < most {
                    near[1] = Some(at + 1);
                }
                if near[0] == value && at > least {
                    near[0] = Some(at - 1);
                }
                near
            }
            None => vec![self.at(LEFT_OUT + step), self.at(1.0 - step)],
        };
        around.retain(|it| *it != value);
        around.dedup();
        around
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a place on the line need not be exact"
)]
fn float(number: u64) -> f64 {
    number as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates"
)]
fn floored(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use pointsman_component::TimeUnit;
    use serde_json::json;

    use super::*;

    fn schema(key: &str, values: SettingRange, default: Option<&str>) -> SettingSchema {
        SettingSchema {
            key: key.to_owned(),
            about: String::new(),
            values,
            default: default.map(str::to_owned),
        }
    }

    fn described() -> Vec<SettingSchema> {
        let texts = ["a", "b", "c"].map(str::to_owned).to_vec();
        vec![
            schema("cost", SettingRange::Number(0..=1_000_000), Some("100")),
            schema("few", SettingRange::Number(1..=8), Some("3")),
            schema("most", SettingRange::Number(1..=9), None),
            schema("ties", SettingRange::Choice(texts), Some("\"b\"")),
            schema(
                "list",
                SettingRange::Other("two numbers".into()),
                Some("[1,2]"),
            ),
        ]
    }

    fn space(before: &Value) -> Space {
        let before = before.as_object().unwrap();
        Space::new(&described(), &[], before).unwrap()
    }

    #[test]
    fn the_table_has_what_is_not_by_default_and_what_it_had() {
        let space = space(&json!({"few": 3, "list": [3, 4], "ties": "c"}));
        let start = space.start();
        assert_eq!(start, [Some(100), Some(3), None, Some(2)]);
        let same = json!({"few": 3, "list": [3, 4], "ties": "c"});
        assert_eq!(Value::Object(space.table(&start)), same);
        let other = space.table(&vec![Some(7), Some(3), Some(9), Some(0)]);
        let expected = json!({"cost": 7, "few": 3, "list": [3, 4], "most": 9, "ties": "a"});
        assert_eq!(Value::Object(other), expected);
    }

    #[test]
    fn the_line_reaches_both_ends_and_leads_back() {
        let space = space(&json!({}));
        let [cost, few, most, ties] = space.dims() else {
            panic!("{space:?}");
        };
        assert_eq!((cost.at(0.0), cost.at(1.0)), (Some(0), Some(1_000_000)));
        assert_eq!(cost.at(0.1), Some(100), "small values have their part");
        assert_eq!((few.at(0.0), few.at(1.0)), (Some(1), Some(8)));
        assert_eq!((most.at(0.1), most.at(0.125)), (None, Some(1)));
        let thirds = [0.0, 0.34, 0.67, 1.0].map(|place| ties.at(place));
        assert_eq!(thirds, [Some(0), Some(1), Some(2), Some(2)]);
        for dim in [cost, few, most] {
            for value in [1, 2, 5, 7] {
                assert_eq!(dim.at(dim.place_on_line(value)), Some(value), "{}", dim.key);
            }
        }
    }

    #[test]
    fn around_a_value_are_others() {
        let space = space(&json!({}));
        let [cost, few, most, ties] = space.dims() else {
            panic!("{space:?}");
        };
        assert_eq!(few.around(Some(3), 0.01), [Some(2), Some(4)]);
        assert_eq!(few.around(Some(8), 0.25), [Some(6)]);
        assert_eq!(most.around(Some(1), 0.5), [None, Some(6)]);
        assert_eq!(most.around(None, 0.25).len(), 2);
        assert_eq!(ties.around(Some(1), 0.25), [Some(0), Some(2)]);
        assert!(cost.around(Some(0), 0.25)[0] > Some(1000));
    }

    #[test]
    fn a_duration_is_searched_in_the_policys_unit_and_written_with_one() {
        let values = SettingRange::Duration(TimeUnit::Millis, 0..=500);
        let pause = schema("pause", values, Some("250"));
        let space = |before: &Value| {
            let before = before.as_object().unwrap();
            Space::new(std::slice::from_ref(&pause), &[], before).unwrap()
        };
        assert_eq!(space(&json!({})).start(), [Some(250)]);
        let given = space(&json!({"pause": "0.1s"}));
        assert_eq!(given.start(), [Some(100)]);
        let [dim] = given.dims() else {
            panic!("{given:?}");
        };
        assert_eq!((dim.at(0.0), dim.at(1.0)), (Some(0), Some(500)));
        assert_eq!(dim.around(Some(100), 0.1), [Some(50), Some(150)]);
        assert_eq!(dim.shown(Some(100)), "100ms");
        let table = given.table(&vec![Some(500)]);
        assert_eq!(Value::Object(table), json!({"pause": "500ms"}));
    }

    #[test]
    fn what_cannot_be_searched_is_told() {
        let only = |key: &str| {
            let only = [key.to_owned()];
            let error = Space::new(&described(), &only, &Map::new());
            error.unwrap_err().to_string()
        };
        assert!(only("cots").ends_with("no such setting; did you mean `cost`?"));
        assert!(
            only("list").ends_with("it has no range that could be searched, but is two numbers")
        );
        let none = Space::new(&[], &[], &Map::new()).unwrap_err().to_string();
        assert!(none.contains("there is nothing to search"), "{none}");
    }
}
