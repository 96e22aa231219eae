//! ROUGE (Lin 2004), in two ways of counting that give different numbers.
//!
//! [`google`] is `rouge_score`, which follows ROUGE-1.5.5; [`package`] is the Python package
//! `rouge`, which LongBench uses. Both have quirks that scores of papers carry (tokens, stems, the
//! union of subsequences), so both are written out here.

pub(super) mod google;
pub(super) mod package;
