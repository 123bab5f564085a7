//! Settings that a request overrides for itself.
//!
//! A label `POLICY.SETTING=VALUE` gives a setting of the policy another value for the request that has the
//! label. Clients can set it where the operator allows labels of that key.

use crate::case::Case;
use crate::wire::lifecycle::{NumberRange, Setting, SettingValues};
use crate::wire::types::NameKind;

/// The place of a number in a policy's settings.
type Field<S> = fn(&mut S) -> &mut u32;

/// A setting that a request may override: its key, and its place.
pub type Overridable<S> = (&'static str, Field<S>);

/// The settings of a policy that a request may override. All are numbers.
#[derive(Clone, Debug)]
pub struct Overrides<S> {
    policy: &'static str,
    settings: Vec<(Overridable<S>, NumberRange)>,
}

/// A label that overrides nothing: no request may override that setting, or the value is not in its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadOverride;

// === impl Overrides ===

impl<S: Clone> Overrides<S> {
    /// Lets requests override `settings` of `policy`, within the ranges with which they are described.
    ///
    /// # Panics
    /// If one of them is not described as a number.
    #[must_use]
    pub fn new(policy: &'static str, described: &[Setting], settings: &[Overridable<S>]) -> Self {
        let with_range = |setting: &Overridable<S>| {
            let mut found = described.iter().filter(|it| it.key == setting.0);
            match found.next().map(|it| &it.values) {
                Some(SettingValues::Number(range)) => (*setting, *range),
                _ => panic!("`{}` is not described as a number", setting.0),
            }
        };
        let settings = settings.iter().map(with_range).collect();
        Self { policy, settings }
    }

    /// The settings for a request, by the operator's; absent: it overrides none of them. Reads names.
    ///
    /// # Errors
    /// If a label for this policy overrides nothing. Then none of the request's counts.
    #[inline]
    pub fn of(&self, case: &Case<'_>, settings: &S) -> Result<Option<S>, BadOverride> {
        match &case.request.labels {
            Some(labels) => self.of_labels(case, labels, settings),
            None => Ok(None),
        }
    }

    fn of_labels(
        &self,
        case: &Case<'_>,
        labels: &[u32],
        settings: &S,
    ) -> Result<Option<S>, BadOverride> {
        let mut own = None;
        for label in labels {
            let label = case.fleet.mirror.name(NameKind::Label, *label);
            let label = label.and_then(|label| label.strip_prefix(self.policy));
            let Some(label) = label.and_then(|label| label.strip_prefix('.')) else {
                continue;
            };
            let (place, value) = self.read(label)?;
            *place(own.get_or_insert_with(|| settings.clone())) = value;
        }
        Ok(own)
    }

    fn read(&self, label: &str) -> Result<(Field<S>, u32), BadOverride> {
        let (key, value) = label.split_once('=').ok_or(BadOverride)?;
        let value: u32 = value.parse().map_err(|_error| BadOverride)?;
        let mut settings = self.settings.iter();
        let found = settings.find(|((own, _), range)| {
            *own == key && (range.least..=range.most).contains(&value.into())
        });
        found
            .map(|((_, place), _)| (*place, value))
            .ok_or(BadOverride)
    }
}

#[cfg(test)]
mod tests {
    //! Labels read as overrides.
    use super::*;
    use crate::fixture::{SECOND, request};
    use crate::fleet::Fleet;
    use crate::mirror::Mirror;
    use crate::placements::BatchPlacements;
    use crate::wire::types::{Change, Name, Request};

    /// A scale from 1 to 10, and a seed.
    type Settings = [u32; 2];

    fn described() -> [Setting; 2] {
        [
            Setting::number("scale", 1..=10, 5_u32, ""),
            Setting::other("seed", "", "0", ""),
        ]
    }

    /// The settings of a request with these labels, where the operator's are 5 and 3.
    fn own(labels: &[&str]) -> Result<Option<Settings>, BadOverride> {
        let mut mirror = Mirror::default();
        for (id, label) in (0..).zip(labels) {
            mirror.apply(&mut Change::Name(Name {
                kind: NameKind::Label,
                id,
                text: (*label).into(),
            }));
        }
        let request = Request {
            labels: Some((0..).take(labels.len()).collect()),
            ..request(1)
        };
        let placed = BatchPlacements::default();
        let fleet = Fleet {
            mirror: &mirror,
            placed: &placed,
        };
        let overridable: &[Overridable<Settings>] = &[("scale", |settings| &mut settings[0])];
        let overrides = Overrides::new("mine", &described(), overridable);
        overrides.of(&Case::new(fleet, &request, SECOND), &[5, 3])
    }

    #[test]
    fn labels_for_this_policy_give_its_settings_other_values() {
        assert_eq!(own(&["team=red", "mine.scale=7"]), Ok(Some([7, 3])));
        assert_eq!(
            own(&["mine=1", "minecraft.scale=7", "theirs.scale=7"]),
            Ok(None)
        );
        assert_eq!(own(&[]), Ok(None));
    }

    #[test]
    fn a_label_that_overrides_nothing_is_told_from_none() {
        for bad in [
            "mine.scale=11",
            "mine.scale=0",
            "mine.scale=-1",
            "mine.scale=x",
            "mine.scale",
            "mine.seed=1",
            "mine.other=1",
        ] {
            assert_eq!(own(&["mine.scale=7", bad]), Err(BadOverride), "{bad}");
        }
    }

    #[test]
    #[should_panic(expected = "`seed` is not described as a number")]
    fn a_setting_that_is_no_number_cannot_be_overridden() {
        let seed: &[Overridable<Settings>] = &[("seed", |settings| &mut settings[1])];
        drop(Overrides::new("mine", &described(), seed));
    }
}
