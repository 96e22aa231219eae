use briquette_eval::{
    environment::Environment,
    stats::Mean,
    tune::{Plan, Ranked, Refused, Round},
};
use serde::Serialize;

use super::{
    plural,
    table::{self, Column, Rank, Sheet},
};

/// Which policy serves a model best in a share of the memory, and the evidence.
#[derive(Clone, Debug, Serialize)]
pub struct TuneReport {
    /// Program, model and device.
    #[serde(flatten)]
    pub environment: Environment,
    /// `built-in`, the name of the file of text, or that of the run file and its tasks.
    pub text: String,
    /// Whether questions were asked.
    pub asks: bool,
    /// The target and the sizes.
    pub plan: Plan,
    /// Seconds it ran, without loading the model; of a run that went on where another was, those
    /// since.
    pub seconds: f64,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// Policies that hold the target, the best first.
    pub ranked: Vec<Ranked>,
    /// Policies that do not.
    pub refused: Vec<Refused>,
}

/// The mark of a policy that keeps more than the target allows.
const OVER: &str = "over";

/// Differences of fewer standard errors are not told apart.
const ERRORS: f64 = 2.0;

impl TuneReport {
    /// Whether the table has a row.
    pub fn has_rows(&self) -> bool {
        !self.ranked.is_empty() || self.over().next().is_some()
    }

    /// Policies that keep more than the target allows, and their share.
    fn over(&self) -> impl Iterator<Item = (&Refused, f64)> {
        self.refused.iter().filter_map(|one| Some((one, one.held?)))
    }

    /// The noun of what a round has so many of.
    fn noun(&self) -> &'static str {
        if self.asks { "question" } else { "window" }
    }

    /// The table of those that hold the target, and of those that keep more, which are marked and
    /// not compared.
    pub fn table(&self) -> Sheet {
        let nouns = if self.asks { "questions" } else { "windows" };
        let mut sheet = Sheet::new([
            Column::left("policy"),
            Column::right("budget"),
            Column::right(nouns).ranked(Rank::Extra),
            Column::right("KL\nnats per token"),
            Column::right(format!("above the best\nin the same {nouns}")).ranked(Rank::Extra),
            Column::right("same\ntoken"),
            Column::right("output\nerror").ranked(Rank::Detail),
            Column::right("overlap with\nthe oracle").ranked(Rank::Detail),
            Column::right("kept\nof full"),
        ]);
        for (place, one) in self.ranked.iter().enumerate() {
            let above = match place {
                0 => "-".into(),
                _ => table::difference(one.above_best, 4),
            };
            sheet.row([
                one.label.clone(),
                one.budget.clone(),
                one.kl.count.to_string(),
                table::with_error(one.kl, 4),
                above,
                table::share(one.agreement),
                format!("{:.3}", one.output_error),
                one.overlap.map_or("-".into(), |overlap| format!("{overlap:.2}")),
                format!("{:.1} %", 100.0 * one.held),
            ]);
        }
        for (one, held) in self.over() {
            let kept = format!("{:.1} %, {OVER}", 100.0 * held);
            let none = ["-"; 7].map(str::to_owned);
            sheet.row([one.label.clone()].into_iter().chain(none).chain([kept]));
        }
        sheet
    }

    /// Policies that cannot hold the target, and why: a line each.
    pub fn refusals(&self) -> Vec<String> {
        let line = |Refused { label, reason, .. }: &Refused| format!("{label}: {reason}");
        self.refused.iter().map(line).collect()
    }

    /// How it was measured: a line.
    pub fn method(&self) -> String {
        let Plan { prompt, tokens, .. } = self.plan;
        let rounds = self.rounds.iter().map(|round| {
            let candidates = match round.candidates {
                1 => "1 policy".to_owned(),
                count => format!("{count} policies"),
            };
            format!("{candidates} on {}", plural(round.windows, self.noun()))
        });
        let rounds = rounds.collect::<Vec<_>>().join(", then ");
        let prompts = match self.asks {
            true => format!(
                "contexts of up to {prompt} tokens, compressed before up to {tokens} of question and answer are fed; KL and same \
                 token are of the answers"
            ),
            false => format!("prompts of {prompt} tokens, {tokens} fed behind each"),
        };
        let over = match self.over().next() {
            Some(_) => format!("; {OVER}: above 1.05 times the target, not compared"),
            None => String::new(),
        };
        let error = match self.ranked.iter().any(|one| one.kl.error.is_some()) {
            true => format!("; ± is the standard error over {}s", self.noun()),
            false => String::new(),
        };
        format!("{}: {prompts}; {rounds}{error}; seed {}{over}", self.text, self.plan.seed)
    }

    /// Recommendation, and how sure it is: a sentence each. Empty if nothing holds the target.
    pub fn verdict(&self) -> Vec<String> {
        let Some((best, others)) = self.ranked.split_first() else { return Vec::new() };
        let budget = match best.budget.as_str() {
            "-" => String::new(),
            budget => format!(" with a budget of {budget}"),
        };
        let mut lines = vec![format!(
            "Use {}{budget}: it holds {:.1} % of the full cache at the end of a prompt of {}{} tokens, and its next-token \
             distributions are {} nats from those of the full cache.",
            best.label,
            100.0 * best.held,
            if self.asks { "up to " } else { "" },
            self.plan.prompt,
            table::with_error(best.kl, 4)
        )];
        let finalists: Vec<&Ranked> =
            others.iter().filter(|other| other.round == best.round).collect();
        lines.push(self.sureness(best, &finalists));
        if !self.asks {
            lines.push(
                "It asks no question: whether a detail that the text does not come back to is still found, `--tasks` or \
                 `needle` says."
                    .into(),
            );
        }
        lines
    }

    fn sureness(&self, best: &Ranked, finalists: &[&Ranked]) -> String {
        if best.kl.count < 2 {
            return format!("One {} does not say how sure this is.", self.noun());
        }
        let Some(next) = finalists.first() else { return "Nothing else holds the target.".into() };
        let told_apart =
            |Mean { mean, error, .. }: Mean| error.is_some_and(|error| mean > ERRORS * error);
        let equals: Vec<String> = finalists
            .iter()
            .filter(|other| !told_apart(other.above_best))
            .map(|other| other.label.clone())
            .collect();
        let further = format!(
            "The next, {}, is {} nats further in the same {} {}s",
            next.label,
            table::with_error(next.above_best, 4),
            next.above_best.count,
            self.noun()
        );
        if equals.is_empty() {
            return format!(
                "{further}; every policy of the last round is told apart from the best by {ERRORS} standard errors."
            );
        }
        format!(
            "{further}. Not told apart from the best by {ERRORS} standard errors: {}. More {}s (--samples) would.",
            equals.join(", "),
            self.noun()
        )
    }

    /// The comment above the policy in its file.
    pub fn comment(&self) -> String {
        let Environment { briquette, model, dtype, device, date, .. } = &self.environment;
        let target = 100.0 * self.plan.target;
        let head = format!(
            "Found by briquette {briquette} tune, {date}: {model}, {dtype}, {device}, at most {target} % of the full cache."
        );
        let lines = std::iter::once(head).chain(self.verdict()).chain([self.method() + "."]);
        lines.map(|line| format!("# {line}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use briquette::{Budget, CacheShape, Policy};

    use super::*;
    use crate::table::Form;
    use briquette_eval::tune::Unit;

    fn ranked(label: &str, round: usize, kl: &[f64], best: &[f64]) -> Ranked {
        let above: Vec<f64> = kl.iter().zip(best).map(|(kl, best)| kl - best).collect();
        Ranked {
            label: label.into(),
            budget: "64".into(),
            policy: Policy::snapkv(Budget::Tokens(64)),
            round,
            kl: Mean::of(kl),
            above_best: Mean::of(&above),
            agreement: 0.875,
            output_error: 0.25,
            overlap: None,
            held: 0.099,
        }
    }

    fn report(ranked: Vec<Ranked>) -> TuneReport {
        let shape = CacheShape { layers: 2, query_heads: 2, kv_heads: 1, head_dim: 32 };
        let text = |text: &str| text.to_owned();
        TuneReport {
            environment: Environment::new(text("MODEL"), shape, text("f32"), text("flex")),
            text: text("a.txt"),
            asks: false,
            plan: Plan {
                target: 0.1,
                unit: Unit::Tokens,
                prompt: 512,
                tokens: 32,
                windows: 3,
                seed: 7,
            },
            seconds: 1.0,
            rounds: vec![Round { candidates: 9, windows: 1 }, Round { candidates: 3, windows: 3 }],
            ranked,
            refused: vec![Refused {
                label: text("kivi"),
                reason: text("it has no budget"),
                held: Some(0.313),
            }],
        }
    }

    #[test]
    fn it_says_how_sure_it_is() {
        let best = [0.1, 0.2, 0.3];
        let first = || ranked("first", 2, &best, &best);
        // Far above in all windows; a little above in two and below in one; from an earlier round.
        let far = ranked("far", 2, &[0.2, 0.31, 0.41], &best);
        let near = ranked("near", 2, &[0.12, 0.19, 0.32], &best);
        let early = ranked("early", 1, &[0.1], &best);

        let sure = report(vec![first(), far.clone(), early.clone()]).verdict();
        assert!(sure[0].starts_with("Use first with a budget of 64: it holds 9.9 %"), "{sure:?}");
        assert!(sure[0].contains("0.2000 ± 0.0577 nats"), "{sure:?}");
        assert!(sure[1].starts_with("The next, far, is 0.1067 ± 0.0033 nats further"), "{sure:?}");
        assert!(sure[1].contains("every policy of the last round"), "{sure:?}");
        let unsure = report(vec![first(), near, far]).verdict();
        assert!(unsure[1].starts_with("The next, near, is 0.0100 ± 0.0100"), "{unsure:?}");
        assert!(unsure[1].contains("by 2 standard errors: near."), "{unsure:?}");
        assert_eq!(report(vec![first(), early]).verdict()[1], "Nothing else holds the target.");
        assert!(report(Vec::new()).verdict().is_empty());
        // A single window has no error.
        let once = report(vec![ranked("first", 1, &[0.1], &[0.1])]);
        assert!(once.verdict()[1].starts_with("One window"), "{:?}", once.verdict());
        let said = [once.comment(), once.table().write(Form::Ruled(None))].concat();
        assert!(said.contains("0.1000") && !said.contains('±'), "{said}");
    }

    #[test]
    fn the_comment_and_the_table_hold_the_evidence() {
        let best = [0.1, 0.2, 0.3];
        let report = report(vec![ranked("first", 2, &best, &best)]);
        let file = report.comment() + &report.ranked[0].policy.to_toml().unwrap();
        assert_eq!(Policy::from_toml(&file).unwrap().budget(), Some(Budget::Tokens(64)));
        for part in
            ["at most 10 %", "9 policies on 1 window, then 3 policies on 3 windows", "seed 7"]
        {
            assert!(file.contains(part), "{part}\n{file}");
        }
        for part in ["first", "0.2000 ± 0.0577", "88 %", "9.9 %", "kivi", "31.3 %, over"] {
            let table = report.table().write(Form::Ruled(None));
            assert!(table.contains(part), "{part}\n{table}");
        }
        assert_eq!(report.refusals(), ["kivi: it has no budget"]);
        assert!(report.method().ends_with("over: above 1.05 times the target, not compared"));
        let asked = TuneReport { asks: true, ..report };
        for part in ["contexts of up to 512 tokens", "3 policies on 3 questions", "over questions"]
        {
            assert!(asked.method().contains(part), "{part}\n{}", asked.method());
        }
        assert!(asked.verdict().iter().all(|line| !line.contains("asks no question")));
    }
}
