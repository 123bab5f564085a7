//! The choice of tokens on the device, as `kernels/sample.cu` makes it.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use pointsman_engine::backend::{DeviceError, PossibleTokens, TokenChoice};
use pointsman_engine::sample::{Changes, Draw};

use crate::buffer::Rows;
use crate::failed;
use crate::input::{DeviceNumbers, as_i32};
use crate::module::{Arg, Grid, Kernel, Module};

/// Threads of the block that chooses a token.
const THREADS: u32 = 1024;
/// Numbers by which a choice is told, and a token whose logit changes.
const DRAW_NUMBERS: usize = 12;
const CHANGE_NUMBERS: usize = 4;

/// The chooser of a backend.
#[derive(Debug, Default)]
pub(crate) struct Chooser {
    /// The rows of logits of the last step by which tokens are chosen.
    rows: Range<usize>,
    changes: Changes,
    numbers: DeviceNumbers,
    chosen: Rows,
}

/// Rows of logits on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogitRows {
    pub(crate) address: u64,
    /// Logits in a row.
    pub(crate) size: usize,
}

impl Chooser {
    /// Notes the rows of logits that the step keeps.
    pub(crate) fn expect(&mut self, rows: Range<usize>) {
        self.rows = rows;
    }

    /// Returns true if the step keeps rows, for which choices are to come.
    pub(crate) fn is_expected(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Chooses a token by each row that is kept, and waits for that.
    ///
    /// # Panics
    /// If there are not as many choices as rows.
    pub(crate) fn choose(
        &mut self,
        (module, stream): (&Module, &Arc<CudaStream>),
        logits: LogitRows,
        choices: &[TokenChoice<'_>],
        possible: PossibleTokens<'_>,
    ) -> Result<Vec<Option<u32>>, DeviceError> {
        self.check(choices);
        let (mut draws, mut changes) = (Vec::new(), Vec::new());
        for (row, choice) in self.rows.clone().zip(choices) {
            self.lay_out(row, choice, possible.count, (&mut draws, &mut changes));
        }
        let missing: Vec<i32> = possible.missing.iter().map(|id| id.cast_signed()).collect();
        let parts = [draws.as_slice(), changes.as_slice(), missing.as_slice()];
        let [draws, changes, missing_at] = self.numbers.copy(stream, parts)?;
        let args = [
            Arg::Address(
                self.chosen
                    .provide(stream, choices.len(), size_of::<i32>())?,
            ),
            Arg::Address(logits.address),
            Arg::Address(draws),
            Arg::Address(changes),
            Arg::Address(missing_at),
            Arg::Int(as_i32(missing.len())),
            Arg::Int(as_i32(logits.size)),
            Arg::Int(as_i32(possible.count)),
        ];
        let grid = Grid {
            blocks: (choices.len(), 1, 1),
            threads: THREADS,
        };
        module.launch(stream, Kernel::Choose, grid, &args)?;
        self.fetch(stream, choices.len())
    }

    fn check(&self, choices: &[TokenChoice<'_>]) {
        assert_eq!(choices.len(), self.rows.len(), "a choice for each row");
    }

    /// Appends the numbers of a choice, and of the tokens whose logits it changes.
    fn lay_out(
        &mut self,
        row: usize,
        choice: &TokenChoice<'_>,
        tokens: usize,
        (draws, changes): (&mut Vec<i32>, &mut Vec<i32>),
    ) {
        let sampling = choice.sampling;
        let draw = Draw::new(sampling, choice.tokens.generated.len());
        let own = self.changes.of(sampling, choice.tokens, tokens);
        let bits = |number: f32| number.to_bits().cast_signed();
        let [low, high] = halves(draw.random);
        let penalties = sampling.penalties;
        let numbers: [i32; DRAW_NUMBERS] = [
            as_i32(row),
            bits(draw.temperature),
            draw.top_k.min(i32::MAX.unsigned_abs()).cast_signed(),
            bits(draw.top_p),
            bits(draw.min_p),
            low,
            high,
            as_i32(changes.len() / CHANGE_NUMBERS),
            as_i32(own.len()),
            bits(penalties.repetition),
            bits(penalties.frequency),
            bits(penalties.presence),
        ];
        draws.extend(numbers);
        for change in own {
            let numbers: [i32; CHANGE_NUMBERS] = [
                change.token.cast_signed(),
                bits(change.bias),
                change.times.cast_signed(),
                i32::from(change.came_up),
            ];
            changes.extend(numbers);
        }
    }

    /// Waits for the tokens, and copies them.
    fn fetch(
        &self,
        stream: &Arc<CudaStream>,
        count: usize,
    ) -> Result<Vec<Option<u32>>, DeviceError> {
        let mut chosen = vec![0_i32; count];
        self.chosen.read(stream, &mut chosen)?;
        stream.synchronize().map_err(failed)?;
        Ok(chosen.iter().map(|id| u32::try_from(*id).ok()).collect())
    }
}

/// The lower and the upper half of a number.
fn halves(number: u64) -> [i32; 2] {
    let [a, b, c, d, e, f, g, h] = number.to_le_bytes();
    [[a, b, c, d], [e, f, g, h]].map(i32::from_le_bytes)
}
