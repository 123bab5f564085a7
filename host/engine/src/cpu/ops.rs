//! [`Ops`] on this machine's processors, for one step.
//!
//! Large operations are cut into pieces that threads take: a product by rows of its weights,
//! attention by tokens and heads. The threads' shares change no bit of the result.

use rayon::iter::{IntoParallelIterator, ParallelIterator};

use super::input::{InputBatch, Row};
use super::kernels::{self, Input, Product, Weight};
use super::kv::{Half, HeadRef, StepKv};
use super::simd::{Simd, widen};
use pointsman_model::config::LlamaConfig;
use pointsman_model::graph::HeadNorms;
use pointsman_model::ops::Ops;
use pointsman_model::weights::{Matrix, Values};

/// Number of multiplications below which waking a thread costs more than it saves.
pub(super) const PARALLEL_MIN: usize = 1 << 20;

pub(super) struct CpuOps<'a, S> {
    pub(super) simd: S,
    pub(super) config: &'a LlamaConfig,
    pub(super) input: InputBatch,
    pub(super) kv: StepKv<'a>,
    /// Threads of the pool in which the step runs; 1 where there is none.
    pub(super) threads: usize,
    /// The input of a product, kept between steps for its memory.
    pub(super) packed: &'a mut Input,
}

impl<S: Simd> Ops for CpuOps<'_, S> {
    type Activations = Vec<f32>;
    type Matrix = Matrix;
    type Vector = Vec<f32>;

    fn embed(&mut self, table: &Matrix, out: &mut Vec<f32>) {
        out.clear();
        for row in &self.input.rows {
            let range = row.token * table.cols..(row.token + 1) * table.cols;
            match &table.values {
                Values::Bf16(values) => out.extend(values[range].iter().copied().map(widen)),
                Values::F32(values) => out.extend_from_slice(&values[range]),
            }
        }
    }

    fn rmsnorm(&mut self, hidden: &Vec<f32>, weight: &Vec<f32>, out: &mut Vec<f32>) {
        let (simd, eps) = (self.simd, self.config.rms_norm_eps);
        out.resize(hidden.len(), 0.0);
        simd.enter(
            #[inline(always)]
            || {
                let size = weight.len();
                for (x, out) in hidden.chunks_exact(size).zip(out.chunks_exact_mut(size)) {
                    kernels::rmsnorm(simd, x, weight, eps, out);
                }
            },
        );
    }

    fn add_rmsnorm(
        &mut self,
        delta: &Vec<f32>,
        hidden: &mut Vec<f32>,
        weight: &Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        for (hidden, delta) in hidden.iter_mut().zip(delta) {
            *hidden += delta;
        }
        self.rmsnorm(hidden, weight, out);
    }

    fn linear(
        &mut self,
        x: &Vec<f32>,
        weight: &Matrix,
        bias: Option<&Vec<f32>>,
        out: &mut Vec<f32>,
    ) {
        match &weight.values {
            Values::Bf16(values) => self.product(x, weight.cols, values, out),
            Values::F32(values) => self.product(x, weight.cols, values, out),
        }
        if let Some(bias) = bias {
            for row in out.chunks_exact_mut(bias.len()) {
                for (out, bias) in row.iter_mut().zip(bias) {
                    *out += bias;
                }
            }
        }
    }

    fn logits(&mut self, x: &Vec<f32>, head: &Matrix, out: &mut Vec<f32>) {
        self.linear(x, head, None, out);
    }

    fn norm_heads(&mut self, qkv: &mut Vec<f32>, norms: &HeadNorms<Vec<f32>>) {
        let (simd, config) = (self.simd, self.config);
        let (head_dim, eps) = (config.head_dim, config.rms_norm_eps);
        let mut normed = vec![0.0; head_dim];
        simd.enter(
            #[inline(always)]
            || {
                for row in qkv.chunks_exact_mut(config.qkv_size()) {
                    let (queries, rest) = row.split_at_mut(config.q_size());
                    let keys = &mut rest[..config.kv_size()];
                    for (heads, weight) in [(queries, &norms.query), (keys, &norms.key)] {
                        for head in heads.chunks_exact_mut(head_dim) {
                            kernels::rmsnorm(simd, head, weight, eps, &mut normed);
                            head.copy_from_slice(&normed);
                        }
                    }
                }
            },
        );
    }

    fn rope_write_kv(&mut self, layer: usize, qkv: &mut Vec<f32>) {
        let (simd, config) = (self.simd, self.config);
        let (head_dim, rotated) = (config.head_dim, config.q_size() + config.kv_size());
        let rows = qkv.chunks_exact_mut(config.qkv_size());
        let angles = self.input.angles.chunks_exact(head_dim);
        for ((qkv, angles), row) in rows.zip(angles).zip(&self.input.rows) {
            let (cos, sin) = angles.split_at(head_dim / 2);
            simd.enter(
                #[inline(always)]
                || {
                    for head in qkv[..rotated].chunks_exact_mut(head_dim) {
                        kernels::rope(head, cos, sin);
                    }
                },
            );
            let (keys, values) = qkv[config.q_size()..].split_at(config.kv_size());
            let place = self.input.place(row, self.kv.slots());
            for (half, numbers) in [(Half::Keys, keys), (Half::Values, values)] {
                self.kv.write(layer, half, place, numbers);
            }
        }
    }

    fn attention(&mut self, layer: usize, qkv: &Vec<f32>, out: &mut Vec<f32>) {
        let (simd, config) = (self.simd, self.config);
        out.resize(self.input.rows.len() * config.q_size(), 0.0);
        // A unit of work is one token's attention to one key and value head.
        let unit = config.group_size() * config.head_dim;
        let positions = self.input.rows.iter().map(|row| row.position + 1);
        let work = positions.sum::<usize>() * config.q_size() * 2;
        let units = (out.len() / unit).div_ceil(self.pieces(work)).max(1);
        let pieces: Vec<_> = out.chunks_mut(units * unit).enumerate().collect();
        let this = &*self;
        each(pieces, |(piece, out)| {
            let mut scratch = Scratch::default();
            simd.enter(
                #[inline(always)]
                || {
                    for (out, index) in out.chunks_exact_mut(unit).zip(piece * units..) {
                        let row = index / config.kv_heads;
                        let head = index % config.kv_heads;
                        let queries = &qkv[row * config.qkv_size() + head * unit..][..unit];
                        let at = Keys {
                            layer,
                            head,
                            row: &this.input.rows[row],
                        };
                        this.attend(queries, at, &mut scratch, out);
                    }
                },
            );
        });
    }

    fn silu_mul(&mut self, gate_up: &Vec<f32>, out: &mut Vec<f32>) {
        let (simd, size) = (self.simd, self.config.intermediate_size);
        out.resize(gate_up.len() / 2, 0.0);
        simd.enter(
            #[inline(always)]
            || {
                let rows = gate_up.chunks_exact(2 * size);
                for (gate_up, out) in rows.zip(out.chunks_exact_mut(size)) {
                    let (gate, up) = gate_up.split_at(size);
                    kernels::silu_mul(gate, up, out);
                }
            },
        );
    }

    fn last_rows(&mut self, x: &Vec<f32>, out: &mut Vec<f32>) {
        take(&self.input.last, x, self.config.hidden_size, out);
    }

    fn hidden_rows(&mut self, x: &Vec<f32>, out: &mut Vec<f32>) {
        take(&self.input.hidden, x, self.config.hidden_size, out);
    }
}

/// Takes rows of so many numbers.
fn take(rows: &[usize], x: &[f32], size: usize, out: &mut Vec<f32>) {
    out.clear();
    for row in rows {
        out.extend_from_slice(&x[row * size..(row + 1) * size]);
    }
}

/// Memory of a thread's attention, kept from one unit to the next.
#[derive(Default)]
struct Scratch {
    queries: Input,
    scores: Vec<f32>,
}

/// The keys and values that a token sees in one head.
struct Keys<'a> {
    layer: usize,
    head: usize,
    row: &'a Row,
}

impl<S: Simd> CpuOps<'_, S> {
    /// Computes a product, cut by rows of `weight`.
    fn product<W: Weight>(&mut self, x: &[f32], cols: usize, weight: &[W], out: &mut Vec<f32>) {
        self.packed.fill::<S>(x, cols);
        let (simd, x) = (self.simd, &*self.packed);
        let (rows, tokens) = (weight.len() / cols, x.tokens());
        out.resize(tokens * rows, 0.0);
        let pieces = self.pieces(tokens * weight.len());
        let piece_rows = rows.div_ceil(pieces).next_multiple_of(kernels::PANEL);
        // Each piece with its outputs, a slice for each token.
        let pieces = weight.chunks(piece_rows * cols);
        let mut pieces: Vec<_> = pieces
            .map(|part| (part, Vec::with_capacity(tokens)))
            .collect();
        for row in out.chunks_exact_mut(rows) {
            for ((_, outs), out) in pieces.iter_mut().zip(row.chunks_mut(piece_rows)) {
                outs.push(out);
            }
        }
        each(pieces, |(weight, mut outs)| {
            simd.enter(
                #[inline(always)]
                || {
                    let product = Product { weight, x };
                    product.run(simd, |token, row, values: &[f32]| {
                        outs[token][row..row + values.len()].copy_from_slice(values);
                    });
                },
            );
        });
    }

    /// Computes attention of the queries that share a head, in order of positions.
    #[inline(always)]
    fn attend(&self, queries: &[f32], at: Keys<'_>, scratch: &mut Scratch, out: &mut [f32]) {
        let Scratch {
            queries: input,
            scores,
        } = scratch;
        let (simd, slots, head_dim) = (self.simd, self.kv.slots(), self.config.head_dim);
        let seen = at.row.position + 1;
        let blocks = &self.input.table(at.row)[..seen.div_ceil(slots)];
        let half = |half, block| {
            let Keys { layer, head, .. } = at;
            self.kv.head(block, HeadRef { layer, half, head })
        };
        scores.resize(self.config.group_size() * seen, 0.0);
        input.fill::<S>(queries, head_dim);
        for (block, from) in blocks.iter().zip((0..).step_by(slots)) {
            let slots = slots.min(seen - from);
            let product = Product {
                weight: &half(Half::Keys, *block)[..slots * head_dim],
                x: &*input,
            };
            product.run(simd, |query, slot, values: &[f32]| {
                scores[query * seen + from + slot..][..values.len()].copy_from_slice(values);
            });
        }
        let scale = 1.0 / (head_dim as f32).sqrt();
        let heads = scores
            .chunks_exact_mut(seen)
            .zip(out.chunks_exact_mut(head_dim));
        for (scores, out) in heads {
            let sum = kernels::softmax_weights(scores, scale);
            out.fill(0.0);
            for (weights, block) in scores.chunks(slots).zip(blocks) {
                let values = &half(Half::Values, *block)[..weights.len() * head_dim];
                kernels::add_weighted(simd, weights, values, out);
            }
            for out in out {
                *out /= sum;
            }
        }
    }

    /// Returns the number of pieces for so many multiplications.
    fn pieces(&self, work: usize) -> usize {
        if self.threads == 1 || work < PARALLEL_MIN {
            return 1;
        }
        // More than threads, so that one that is held up leaves some to the others.
        self.threads * 4
    }
}

/// Runs pieces in the pool, or on this thread where there is one piece: there may be no pool.
fn each<T: Send>(pieces: Vec<T>, run: impl Fn(T) + Sync + Send) {
    if pieces.len() > 1 {
        pieces.into_par_iter().for_each(run);
    } else {
        pieces.into_iter().for_each(run);
    }
}
