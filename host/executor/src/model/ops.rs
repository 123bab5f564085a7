//! What a device must be able to compute for [`super::graph::forward`].
//!
//! An implementation is made for one step and knows its tokens, their positions and their
//! sequences' block tables; [`Activations`](Ops::Activations) have a row for each of these tokens.
//! Each operation overwrites its output whatever it held, and gives it the size it needs. A
//! device that computes later only notes down what to do; one that can fail keeps its first
//! error until the step is over.

/// The operations of a Llama-family model.
pub trait Ops {
    /// Rows of numbers on the device.
    type Activations;
    /// A weight matrix, `[outputs, inputs]`.
    type Matrix;
    /// A weight vector.
    type Vector;

    /// The tokens' rows of `table`.
    fn embed(&mut self, table: &Self::Matrix, out: &mut Self::Activations);

    /// Rows divided by their root mean square, times `weight`.
    fn rmsnorm(
        &mut self,
        hidden: &Self::Activations,
        weight: &Self::Vector,
        out: &mut Self::Activations,
    );

    /// Adds `delta` to `hidden`, then [`Self::rmsnorm`].
    fn add_rmsnorm(
        &mut self,
        delta: &Self::Activations,
        hidden: &mut Self::Activations,
        weight: &Self::Vector,
        out: &mut Self::Activations,
    );

    /// `x` times the transpose of `weight`, plus `bias`.
    fn linear(
        &mut self,
        x: &Self::Activations,
        weight: &Self::Matrix,
        bias: Option<&Self::Vector>,
        out: &mut Self::Activations,
    );

    /// Turns queries and keys by their positions, and writes keys and values into the blocks.
    fn rope_write_kv(&mut self, layer: usize, qkv: &mut Self::Activations);

    /// What each token sees at the positions of its sequence up to its own, through the block
    /// table.
    fn attention(&mut self, layer: usize, qkv: &Self::Activations, out: &mut Self::Activations);

    /// SiLU of the first half of each row, times its second half.
    fn silu_mul(&mut self, gate_up: &Self::Activations, out: &mut Self::Activations);

    /// The last rows of the chunks that want logits.
    fn last_rows(&mut self, x: &Self::Activations, out: &mut Self::Activations);
}
