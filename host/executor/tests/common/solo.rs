//! What a sequence answers when it is alone: the plainest loop there is, and text made at the end.

use pointsman_core::BlockId;
use pointsman_executor::delivery::StopReason;
use pointsman_executor::job::Job;
use pointsman_executor::model::backend::{Backend, Chunk, Logits};
use pointsman_executor::sample::Sampler;
use pointsman_executor::text::ModelText;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub ids: Vec<u32>,
    pub text: String,
    pub stop: StopReason,
}

/// The answer to `job`, in the first blocks of `backend`'s pool.
pub fn solo(backend: &mut dyn Backend, text: &ModelText, job: &Job) -> Answer {
    let blocks: Vec<BlockId> = (0..backend.blocks_total()).map(BlockId).collect();
    let mut tokens = job.prompt.clone();
    let mut computed = 0;
    let mut logits = Vec::new();
    loop {
        let chunk = Chunk {
            tokens: &tokens[computed..],
            start: u32::try_from(computed).unwrap(),
            blocks: &blocks,
            logits: Logits::Last,
        };
        backend.forward(&[chunk], &mut logits).unwrap();
        computed = tokens.len();
        let generated = tokens.len() - job.prompt.len();
        let known = &logits[..text.vocab_size()];
        let token = Sampler::default().choose(known, &job.sampling, generated);
        tokens.push(token.unwrap());
        let ids = &tokens[job.prompt.len()..];
        let room = backend.context_tokens() as usize - job.prompt.len();
        let ids_max = room.clamp(1, job.output_tokens_max as usize);
        if let Some(answer) = ended(text, job, ids, ids_max) {
            return answer;
        }
    }
}

/// The answer, if generation ends with the last of `ids`.
fn ended(text: &ModelText, job: &Job, ids: &[u32], ids_max: usize) -> Option<Answer> {
    let is_last = ids.len() == ids_max;
    let (last, before) = ids.split_last().unwrap();
    let is_eos = !job.ignore_eos && text.eos().contains(last);
    let shown = text.decode(if is_eos { before } else { ids }).unwrap();
    let answer = |text: &str, stop| Answer {
        ids: ids.to_vec(),
        text: text.to_owned(),
        stop,
    };
    let may_change = shown.ends_with(char::REPLACEMENT_CHARACTER) && !is_last && !is_eos;
    if let Some(cut) = first_stop(&shown, &job.stop)
        && !may_change
    {
        return Some(answer(&shown[..cut], StopReason::Stop));
    }
    match (is_eos, is_last) {
        (true, _) => Some(answer(&shown, StopReason::Stop)),
        (false, true) => Some(answer(&shown, StopReason::Length)),
        (false, false) => None,
    }
}

/// Where the stop string begins that ends first, found byte by byte; the longest of several.
pub fn first_stop(text: &str, stop: &[String]) -> Option<usize> {
    (1..=text.len()).find_map(|end| {
        let ends_here = stop
            .iter()
            .filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()));
        ends_here.map(|stop| end - stop.len()).min()
    })
}
