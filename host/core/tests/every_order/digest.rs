//! The digest of a state: equal for states between which nothing that is decided can tell.
//!
//! A digest is made of what a machine writes down for a keyframe, less what no rule reads: the positions of
//! rows in the change log, the number of the round, and measures for policies and monitors. Times count by
//! their distance from now, so that the same situation a minute later is the same state.

use std::fmt;

use pointsman_core::{Machine, Micros};
use serde::ser::{self, Serialize, Serializer};

/// The time at which a small world begins: later than the longest span that the machine is told of, by which
/// a time and a span are told apart.
pub(crate) const BEGINNING: Micros = Micros(1 << 40);

/// The age in µs from which on times are all the same: no bound of the machine is as long.
const OLD: i64 = 11_000_000;

/// Types that no rule reads, that never change, or (the blocks) that are as good as each other where no
/// prompt is shared: their number counts.
const UNREAD: [&str; 10] = [
    "Average",
    "Block",
    "BlockId",
    "ChangeLog",
    "Completions",
    "Config",
    "HostBlockId",
    "Names",
    "Round",
    "Stamp",
];

/// Fields of that kind. A stay before a placement is read where a server turns a request back, and no engine
/// does that.
const UNREAD_FIELDS: [&str; 10] = [
    "by",
    "clock",
    "evicted_total",
    "hold_end",
    "output_tokens_total",
    "placed_total",
    "prompt_tokens_total",
    "spec",
    "stay_before",
    "tokens_used",
];

/// Times that are measured: a rule reads at most that there is one.
const MEASURED: [&str; 5] = [
    "arrived",
    "placed_at",
    "started_at",
    "first_token_at",
    "last_token_at",
];

/// The meaning of times.
#[derive(Clone, Copy)]
enum Times {
    /// Something is counted from them or to them.
    Told,
    /// They are measured: see [`MEASURED`].
    Measured,
    /// They end something: once they are over they are all the same.
    Ends,
}

/// A hash of everything that is written to it.
pub(crate) struct Digest {
    hash: u64,
    now: u64,
    /// The number that is written now is a time.
    is_time: bool,
    /// The meaning of a time that is written now.
    times: Times,
}

/// The digest of a machine at the time `now`.
pub(crate) fn of(machine: &Machine, now: Micros) -> Digest {
    let mut digest = Digest {
        hash: 0x243f_6a88_85a3_08d3,
        now: now.0,
        is_time: false,
        times: Times::Told,
    };
    machine
        .serialize(&mut digest)
        .expect("a digest takes whatever is written");
    digest
}

impl Digest {
    /// Adds a number: both halves of a wide product, so that every bit counts.
    pub(crate) fn add(&mut self, n: u64) {
        let mixed = u128::from(self.hash ^ n ^ 0xa076_1d64_78bd_642f) * 0xe703_7ed1_a0b4_28db_u128;
        let bytes = mixed.to_le_bytes();
        let half = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        self.hash = (half(0) ^ half(8)).rotate_left(17) ^ n;
    }

    /// The digest of all that was added.
    pub(crate) fn sum(mut self) -> u64 {
        self.add(1);
        self.hash
    }

    fn add_time(&mut self, micros: u64) {
        if micros < BEGINNING.0 {
            return self.add(micros);
        }
        let distance = micros.wrapping_sub(self.now).cast_signed();
        let distance = distance.max(-OLD);
        self.add(match self.times {
            Times::Told => distance.cast_unsigned() | 1 << 62,
            Times::Measured => u64::MAX,
            Times::Ends => distance.max(0).cast_unsigned() | 1 << 62,
        });
    }
}

type Written = Result<(), fmt::Error>;

/// The parts of a list, map, struct or variant.
pub(crate) struct Parts<'a> {
    digest: &'a mut Digest,
    /// The parts are of a type that is left out.
    is_unread: bool,
}

impl Parts<'_> {
    fn part<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        value.serialize(&mut *self.digest)
    }

    fn field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Written {
        if self.is_unread || UNREAD_FIELDS.contains(&key) {
            return Ok(());
        }
        let outside = self.digest.times;
        if MEASURED.contains(&key) {
            self.digest.times = Times::Measured;
        } else if key == "until" {
            self.digest.times = Times::Ends;
        }
        let written = self.part(value);
        self.digest.times = outside;
        written
    }
}

/// Methods that write a number.
macro_rules! numbers {
    ($($method:ident: $number:ty),*) => {$(
        fn $method(self, n: $number) -> Written {
            self.serialize_u64(n as u64)
        }
    )*};
}

#[expect(
    clippy::cast_lossless,
    clippy::cast_sign_loss,
    reason = "the bits of a number are hashed, whatever they stand for"
)]
impl<'a> Serializer for &'a mut Digest {
    type Ok = ();
    type Error = fmt::Error;
    type SerializeSeq = Parts<'a>;
    type SerializeTuple = Parts<'a>;
    type SerializeTupleStruct = Parts<'a>;
    type SerializeTupleVariant = Parts<'a>;
    type SerializeMap = Parts<'a>;
    type SerializeStruct = Parts<'a>;
    type SerializeStructVariant = Parts<'a>;

    numbers! {
        serialize_bool: bool, serialize_char: char,
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32
    }

    fn serialize_u64(self, n: u64) -> Written {
        if std::mem::take(&mut self.is_time) {
            self.add_time(n);
        } else {
            self.add(n);
        }
        Ok(())
    }

    fn serialize_u128(self, n: u128) -> Written {
        self.serialize_bytes(&n.to_le_bytes())
    }

    fn serialize_f32(self, x: f32) -> Written {
        self.serialize_u32(x.to_bits())
    }

    fn serialize_f64(self, x: f64) -> Written {
        self.serialize_u64(x.to_bits())
    }

    fn serialize_str(self, text: &str) -> Written {
        self.serialize_bytes(text.as_bytes())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Written {
        self.add(bytes.len() as u64);
        bytes.iter().for_each(|byte| self.add(u64::from(*byte)));
        Ok(())
    }

    fn serialize_none(self) -> Written {
        self.serialize_u8(0)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Written {
        self.add(1);
        value.serialize(self)
    }

    fn serialize_unit(self) -> Written {
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Written {
        Ok(())
    }

    fn serialize_unit_variant(self, _: &'static str, idx: u32, _: &'static str) -> Written {
        self.serialize_u32(idx)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Written {
        if UNREAD.contains(&name) {
            return Ok(());
        }
        self.is_time = name == "Micros";
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        idx: u32,
        _: &'static str,
        value: &T,
    ) -> Written {
        self.add(u64::from(idx));
        value.serialize(self)
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Parts<'a>, fmt::Error> {
        self.begin("", len.unwrap_or_default())
    }

    fn serialize_tuple(self, len: usize) -> Result<Parts<'a>, fmt::Error> {
        self.begin("", len)
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Parts<'a>, fmt::Error> {
        self.begin(name, len)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        idx: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts<'a>, fmt::Error> {
        self.begin(name, idx as usize)
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Parts<'a>, fmt::Error> {
        self.begin("", len.unwrap_or_default())
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Parts<'a>, fmt::Error> {
        self.begin(name, 0)
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        idx: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts<'a>, fmt::Error> {
        self.begin(name, idx as usize)
    }
}

impl Digest {
    fn begin(&mut self, name: &'static str, n: usize) -> Result<Parts<'_>, fmt::Error> {
        let is_unread = UNREAD.contains(&name);
        if !is_unread {
            self.add(n as u64);
        }
        Ok(Parts {
            digest: self,
            is_unread,
        })
    }
}

/// Parts without names: those of lists and variants.
macro_rules! unnamed {
    ($($of:ident: $method:ident),*) => {$(
        impl ser::$of for Parts<'_> {
            type Ok = ();
            type Error = fmt::Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
                self.part(value)
            }

            fn end(self) -> Written {
                Ok(())
            }
        }
    )*};
}

/// Parts with names.
macro_rules! named {
    ($($of:ident),*) => {$(
        impl ser::$of for Parts<'_> {
            type Ok = ();
            type Error = fmt::Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> Written {
                self.field(key, value)
            }

            fn end(self) -> Written {
                Ok(())
            }
        }
    )*};
}

unnamed! {
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field
}
named! { SerializeStruct, SerializeStructVariant }

impl ser::SerializeMap for Parts<'_> {
    type Ok = ();
    type Error = fmt::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Written {
        self.part(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        self.part(value)
    }

    fn end(self) -> Written {
        Ok(())
    }
}
