//! The conversion of what a policy says of itself.

/// Part of [`conversions`]: a policy's description of itself.
#[doc(hidden)]
#[macro_export]
macro_rules! conversions_of_description {
    () => {
        pub(crate) fn description(said: wire::lifecycle::Description) -> $crate::PolicyDescription {
            let mut needs = interface::Needs::default();
            for need in said.needs {
                let kinds = row_kinds(need.feed);
                let kept = match hook(need.hook) {
                    Some(hook) => &mut needs.decisions[hook],
                    None => &mut needs.explanation,
                };
                *kept = kept.union(kinds);
            }
            $crate::PolicyDescription {
                name: said.name,
                version: said.version,
                summary: said.summary,
                needs,
                reasons: said.reasons,
                state_version: said.state_version,
                orders_one: said.orders_one,
                settings: said.settings.into_iter().map(setting).collect(),
            }
        }

        fn setting(said: wire::lifecycle::Setting) -> $crate::SettingSchema {
            use wire::lifecycle::{SettingValues, TimeUnit};
            $crate::SettingSchema {
                key: said.key,
                about: said.about,
                values: match said.values {
                    SettingValues::Number(range) => {
                        $crate::SettingRange::Number(range.least..=range.most)
                    }
                    SettingValues::Duration(range) => {
                        let unit = match range.unit {
                            TimeUnit::Micros => $crate::TimeUnit::Micros,
                            TimeUnit::Millis => $crate::TimeUnit::Millis,
                            TimeUnit::Seconds => $crate::TimeUnit::Seconds,
                        };
                        $crate::SettingRange::Duration(unit, range.least..=range.most)
                    }
                    SettingValues::YesOrNo => $crate::SettingRange::YesOrNo,
                    SettingValues::Choice(texts) => $crate::SettingRange::Choice(texts),
                    SettingValues::Other(words) => $crate::SettingRange::Other(words),
                },
                default: said.default,
            }
        }

        fn row_kinds(feed: wire::lifecycle::Feed) -> interface::RowKinds {
            use interface::RowKind;
            use wire::lifecycle::Feed;
            let flags = [
                (Feed::NAMES, RowKind::Name),
                (Feed::EXECUTORS, RowKind::Executor),
                (Feed::LOADS, RowKind::Load),
                (Feed::RESIDENCIES, RowKind::Residency),
                (Feed::DEVICES, RowKind::Device),
                (Feed::MODELS, RowKind::Model),
                (Feed::TENANTS, RowKind::Tenant),
                (Feed::WAITING, RowKind::Waiting),
                (Feed::SEQUENCES, RowKind::Sequence),
                (Feed::COMPLETED, RowKind::Completion),
            ];
            // Both generators define these two operators, and only one defines `contains`.
            let wanted = flags.into_iter().filter(|(flag, _)| feed & *flag == *flag);
            wanted.map(|(_, kind)| kind).collect()
        }
    };
}
