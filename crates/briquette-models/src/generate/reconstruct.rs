use briquette::{KvCache, PrefillCompression};
use burn::tensor::{Tensor, TensorData};

use crate::{Instruction, Model, Result};

/// Tokens of the previous part that the model starts a part from.
const START: usize = 8;

/// Runs the model a second time over prompts that the cache has just taken in and holds whole, and
/// compresses them by what the model attends to while it repeats them (KVzip), or reads them again
/// (KVCompose). Returns whether there was such a pass: the policy [wants
/// it](briquette::score::AttentionRequest::second_pass), and these are the first tokens of the
/// cache.
///
/// Parts are as long as the policy says, or as long as positions are left for. Prompts of different
/// lengths are repeated together; one that has been repeated to its end is given its last token.
///
/// # Errors
/// [`Error::PromptTooLong`](crate::Error::PromptTooLong) if fewer than 16 positions are left for a
/// part, [`Error::TokenOutOfRange`](crate::Error::TokenOutOfRange), and
/// [`Error::Cache`](crate::Error::Cache) for what the cache refuses. The cache is then as it was.
pub fn reconstruct<P: AsRef<[u32]>>(
    model: &Model,
    prompts: &[P],
    cache: &mut KvCache,
    instruction: &Instruction,
) -> Result<bool> {
    /// A shorter part is no context.
    const LEAST: usize = 16;
    let prompts: Vec<&[u32]> = prompts.iter().map(AsRef::as_ref).collect();
    let lengths: Vec<usize> = prompts.iter().map(|prompt| prompt.len()).collect();
    let never = cache.policy().schedule().prefill == PrefillCompression::Never;
    if never || cache.tokens_seen() != lengths {
        return Ok(false);
    }
    let Some(mut pass) = cache.reconstruction()? else { return Ok(false) };
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let context = model.config().max_position_embeddings;
    let reread = pass.repeat().reread;
    let longest_words = instruction.first.len().max(instruction.next.len() + START);
    let told = if reread { 0 } else { longest_words + instruction.answer.len() };
    let room = context.saturating_sub(longest + told);
    let tokens = pass.repeat().tokens.min(room);
    if tokens < LEAST.min(longest) {
        return Err(model.config().too_long(longest + told + LEAST, context));
    }
    for start in (0..longest).step_by(tokens) {
        let row = |prompt: &&[u32]| -> Vec<u32> {
            let part = &prompt[start.min(prompt.len())..prompt.len().min(start + tokens)];
            if part.is_empty() {
                return prompt[prompt.len() - 1..].to_vec();
            }
            if reread {
                return part.to_vec();
            }
            let before = &prompt[start.saturating_sub(START.min(start))..start];
            let told = if start == 0 { &instruction.first } else { &instruction.next };
            [told, before, &instruction.answer, part].concat()
        };
        let rows: Vec<Vec<u32>> = prompts.iter().map(row).collect();
        model.check_tokens(rows.iter().flatten().map(|&token| i64::from(token)))?;
        let counts: Vec<usize> = rows.iter().map(Vec::len).collect();
        let width = counts.iter().copied().max().unwrap_or(0);
        let padded = rows
            .iter()
            .flat_map(|row| std::iter::repeat_n(0, width - row.len()).chain(row.iter().copied()));
        let data = TensorData::new(padded.collect(), [rows.len(), width]);
        pass.begin(start..start + tokens, &counts)?;
        model.pass(Tensor::from_data(data, &model.device()), &mut pass)?;
    }
    let given = pass.finish();
    cache.compress_by(&given)?;
    Ok(true)
}
