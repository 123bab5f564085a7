//! Limits by name: an operator sets one, and is told the range of a value that is out of it.

/// Limits that have names, by which operators set them.
pub trait NamedLimits: Copy {
    /// Names of all limits, as in the configuration.
    const NAMES: &'static [&'static str];

    /// Names of the limits that are durations, written with a unit. Their values are whole seconds.
    const SECONDS: &'static [&'static str];

    /// The largest value of each limit that any setting may have.
    const CEILING: Self;

    /// Sets the limit called `name`, to at most its value in `ceiling`.
    ///
    /// # Errors
    /// If no limit has that name, or `value` is zero or above the ceiling.
    fn set(&mut self, name: &str, value: u64, ceiling: &Self) -> Result<(), SetLimitError>;

    /// Every limit with its name, as in [`Self::set`].
    fn rows(&self) -> impl Iterator<Item = (&'static str, u64)>;

    /// Returns these limits if each is positive and at most its ceiling.
    ///
    /// # Errors
    /// Names the first limit that is not.
    fn validated(self) -> Result<Self, LimitsError> {
        for ((name, value), (_, max)) in self.rows().zip(Self::CEILING.rows()) {
            checked_limit(name, value, max)?;
        }
        Ok(self)
    }
}

/// Implements [`NamedLimits`] for a struct of numbers, which are `u64` or `u32`. A duration has
/// `in seconds` after its name.
///
/// ```
/// use pointsman_notation::{NamedLimits, named_limits};
///
/// #[derive(Clone, Copy)]
/// struct Limits {
///     memory_bytes: u64,
/// }
///
/// named_limits! {
///     Limits below Limits { memory_bytes: 1 << 30 };
///     memory_bytes "memory-bytes",
/// }
///
/// let error = Limits { memory_bytes: 0 }.validated().err().unwrap();
/// assert_eq!(error.to_string(), "limit memory-bytes is 0, it must be from 1 to 1073741824");
/// ```
#[macro_export]
macro_rules! named_limits {
    ($limits:ident below $ceiling:expr; $($field:ident $name:literal $(in $unit:ident)?,)*) => {
        impl $crate::NamedLimits for $limits {
            const NAMES: &'static [&'static str] = &[$($name),*];

            const SECONDS: &'static [&'static str] = &[$($($crate::named_limits!(@$unit $name),)?)*];

            const CEILING: Self = $ceiling;

            fn set(
                &mut self,
                name: &str,
                value: u64,
                ceiling: &Self,
            ) -> Result<(), $crate::SetLimitError> {
                $(
                    if name == $name {
                        let max = ceiling.$field;
                        let value = $crate::checked_limit($name, value, max.into())?;
                        self.$field = value.try_into().unwrap_or(max);
                        return Ok(());
                    }
                )*
                Err($crate::SetLimitError::Unknown(name.to_owned()))
            }

            fn rows(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, u64::from(self.$field))),*].into_iter()
            }
        }
    };
    (@seconds $name:literal) => {
        $name
    };
}

/// Returns `value` if it is positive and at most `max`.
///
/// # Errors
/// If it is not.
#[doc(hidden)]
pub fn checked_limit(name: &'static str, value: u64, max: u64) -> Result<u64, LimitsError> {
    if value == 0 || value > max {
        return Err(LimitsError { name, value, max });
    }
    Ok(value)
}

/// A limit that is zero or above its ceiling.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("limit {name} is {value}, it must be from 1 to {max}")]
pub struct LimitsError {
    /// Name of the limit, as in the configuration.
    pub name: &'static str,
    /// Value that was set.
    pub value: u64,
    /// Ceiling of the limit.
    pub max: u64,
}

/// A reason why a limit was not set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetLimitError {
    /// No limit has that name.
    #[error("no limit is called {0}")]
    Unknown(String),
    /// The value is zero or above the ceiling.
    #[error(transparent)]
    Range(#[from] LimitsError),
}
