//! Reasons of answers: the texts that a policy describes, and the numbers its answers carry.

/// Makes an enum of reasons. Each is followed by its text, which the host shows beside a decision.
///
/// `Reason::texts()` is for `Description::reasons`, in the order of the variants, and
/// `reason.index()` is what an answer carries: a reason and its text cannot come apart.
///
/// ```
/// pointsman_sdk::reasons! {
///     /// Reasons for placing a request or holding it.
///     enum Reason {
///         LeastLoaded = "the least loaded",
///         NoRoom = "no room anywhere",
///     }
/// }
///
/// assert_eq!(Reason::texts(), ["the least loaded", "no room anywhere"]);
/// assert_eq!(Reason::NoRoom.index(), 1);
/// assert_eq!(Reason::LeastLoaded.index(), 0);
/// ```
#[macro_export]
macro_rules! reasons {
    ($(#[$about:meta])* $vis:vis enum $name:ident { $($reason:ident = $text:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name {
            $(#[doc = $text] $reason,)+
        }

        impl $name {
            /// The texts of all reasons, in order.
            $vis fn texts() -> ::std::vec::Vec<::std::string::String> {
                [$($text),+].map(::std::string::String::from).into()
            }

            /// The place of the reason's text among them.
            $vis const fn index(self) -> u16 {
                self as u16
            }
        }
    };
}
