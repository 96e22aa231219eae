use std::{fmt::Write, path::PathBuf, time::Instant};

use anyhow::{Context, Result, bail};
use briquette::methods;
use briquette_eval::{
    environment::Environment,
    files, policy,
    run::RunFile,
    tune::{Candidate, Material, Plan, Questions, Tuned, Tuning, Unit, variants},
};
use briquette_models::ChatTemplate;
use briquette_report::TuneReport;
use clap::ValueEnum;

use crate::{
    args::{
        inputs,
        jobs::JobsArgs,
        model::{Loaded, ModelArgs},
        path::partial,
        policy_text::PolicyText,
        profile::ProfileArgs,
        resume::ResumeArgs,
        text::TextArgs,
    },
    terminal::{
        output::{Shown, TableArgs},
        output_gate::Mark,
        progress,
    },
};

const EXAMPLES: &str = "\
Examples:
  briquette tune --target-ratio 10% --out tuned.toml
  briquette generate --file book.txt --policy tuned.toml";

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    profile: ProfileArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Run file (.toml) whose query-agnostic tasks are asked instead of a text
    ///
    /// The context is compressed, then the question and its right answer are fed, and the
    /// distributions of the answer count. Lengths are those of the tasks; models and policies of
    /// the file are not read.
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    tasks: Option<PathBuf>,
    /// Ask the tasks in the chat template of the model, as does `chat = true` of their run file
    #[arg(long, requires = "tasks")]
    chat: bool,
    /// Share of the full cache's bytes that may be kept: 0.1 or 10%
    ///
    /// Counted at the end of a prompt: positions and scores too, room for tokens to come not. A
    /// policy that keeps more than 1.05 times the share is shown, marked as over, and not chosen.
    #[arg(long, help_heading = "Compression", value_name = "SHARE", value_parser = share)]
    target_ratio: f64,
    /// Methods of `briquette policies`, or policy files [default: all methods]
    ///
    /// A method is tried with its own parameters and a few others. With parameters named, as in
    /// `snapkv:kernel=15`, it is taken as it is, and so is a policy file. Budgets are searched for.
    #[arg(
        long,
        visible_alias = "policy",
        value_name = "NAME|FILE,…",
        value_delimiter = ',',
        value_parser = PolicyText,
        hide_possible_values = true,
        help_heading = "Compression"
    )]
    policies: Vec<String>,
    /// Unit of budgets: tokens, or a share that grows with the prompt
    #[arg(long, help_heading = "Compression", value_enum, default_value_t = UnitArg::Tokens)]
    unit: UnitArg,
    /// Tokens per prompt, which is compressed
    #[arg(
        long,
        alias = "prompt",
        value_name = "N",
        default_value_t = 1024,
        conflicts_with = "tasks"
    )]
    length: usize,
    /// Tokens fed behind a prompt, one at a time
    #[arg(long, value_name = "N", default_value_t = 32, conflicts_with = "tasks")]
    tokens: usize,
    /// Prompts or questions of the last round; earlier rounds have fewer
    #[arg(long, alias = "windows", value_name = "N", default_value_t = 18)]
    samples: usize,
    /// Seed of the order in which prompts are used, and of the tasks
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    jobs: JobsArgs,
    /// Policy file to write (.toml)
    ///
    /// What has been measured waits in FILE.partial, where a run that was killed goes on.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    out: PathBuf,
    #[command(flatten)]
    resume: ResumeArgs,
    #[command(flatten)]
    tables: TableArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum UnitArg {
    Tokens,
    Share,
}

pub(crate) fn run(args: Args) -> Result<()> {
    if args.out.extension().is_none_or(|ending| ending != "toml") {
        bail!("{}: the name of a policy file must end in .toml", args.out.display());
    }
    let tasks = args.tasks.as_deref().map(RunFile::read).transpose()?;
    let task_files = tasks.as_ref().map_or_else(Vec::new, RunFile::inputs);
    let others = [args.text.inputs(), task_files, args.tasks.iter().cloned().collect()].concat();
    let inputs = inputs::of(&args.model, &args.profile, &args.policies, others);
    args.tables.output.gate(inputs)?.new_file(&args.out, Mark::Tuned)?;
    let mut candidates = candidates(&args.policies)?;
    let loaded = args.model.load()?;
    let name = loaded.name();
    let profiles = args.profile.of(&loaded)?;
    for candidate in &mut candidates {
        candidate.policy = profiles.attached_or_reason(candidate.policy.clone())?;
    }
    let Loaded { model, tokenizer, dir, device, dtype, other_weights, .. } = loaded;
    let (text, questions);
    let mut skipped = Vec::new();
    let (material, prompt, tokens, windows) = match &tasks {
        Some(file) => {
            let chat = args.chat || file.models.iter().any(|model| model.chat);
            let template = match chat {
                true => Some(ChatTemplate::load(&dir)?.with_context(|| {
                    format!("the model in {} has no chat template", dir.display())
                })?),
                false => None,
            };
            questions = Questions::read(file, &tokenizer, template.as_ref(), args.seed)?;
            skipped.extend_from_slice(questions.skipped());
            let windows = args.samples.min(questions.count());
            let (longest, behind) = (questions.longest(), questions.most_behind());
            (Material::Questions(&questions), longest, behind, windows)
        }
        None => {
            text = args.text.read(&tokenizer)?;
            (Material::Text(&text), args.length, args.tokens, args.samples)
        }
    };
    let tuning = Tuning {
        model: &model,
        material,
        plan: Plan {
            target: args.target_ratio,
            unit: match args.unit {
                UnitArg::Tokens => Unit::Tokens,
                UnitArg::Share => Unit::Share,
            },
            prompt,
            tokens,
            windows,
            seed: args.seed,
        },
        candidates,
        name: name.clone(),
        weights: profiles.weights()?.to_owned(),
        accept: args.resume.accept(other_weights),
        threads: args.jobs.threads(&device)?,
    };

    let bar = progress::bar(0);
    let start = Instant::now();
    let tuned = tuning.run(&partial(&args.out), |done, all, policy| {
        bar.set_length(all as u64);
        bar.set_message(policy.to_owned());
        bar.set_position(done as u64);
        if policy.is_empty() {
            bar.reset_eta();
        }
    });
    bar.finish_and_clear();
    let Tuned { ranked, refused, rounds, journal } = tuned?;
    let report = TuneReport {
        environment: Environment::new(name, model.cache_shape(), dtype, device),
        text: material.name().to_owned(),
        asks: material.asks(),
        plan: tuning.plan,
        seconds: start.elapsed().as_secs_f64(),
        rounds,
        ranked,
        refused,
    };

    let mut shown = Shown::default();
    skipped.iter().try_for_each(|line| writeln!(shown.before, "Left out: {line}"))?;
    if report.has_rows() {
        shown.tables.push(report.table());
        writeln!(
            shown.behind,
            "{}; {:.0} s on {}",
            report.method(),
            report.seconds,
            report.environment.device
        )?;
    }
    let target = 100.0 * report.plan.target;
    let refusals = report.refusals();
    if !refusals.is_empty() {
        writeln!(
            shown.behind,
            "\nCannot hold {target} % of the full cache, positions and scores counted, spare room not:"
        )?;
        refusals.iter().try_for_each(|line| writeln!(shown.behind, "  {line}"))?;
    }
    let Some(best) = report.ranked.first() else {
        journal.remove()?;
        args.tables.write(&shown, &report)?;
        bail!("no policy holds {target} % of the full cache at {} tokens", report.plan.prompt);
    };
    let file = format!("{}\n{}", report.comment(), best.policy.to_toml()?);
    files::write(&args.out, file)?;
    journal.remove()?;
    writeln!(shown.behind)?;
    report.verdict().iter().try_for_each(|line| writeln!(shown.behind, "{line}"))?;
    writeln!(shown.behind, "The policy is in {}", args.out.display())?;
    args.tables.write(&shown, &report)
}

/// The policies to try, each once. A bare name of a method stands for its variants.
fn candidates(policies: &[String]) -> Result<Vec<Candidate>> {
    let all = || methods().into_iter().map(|method| method.name).filter(|name| name != "full");
    let named: Vec<String> = if policies.is_empty() { all().collect() } else { policies.to_vec() };
    let texts = named.iter().flat_map(|text| match text.contains(':') || policy::is_file(text) {
        true => vec![text.clone()],
        false => variants(text),
    });
    let mut candidates: Vec<Candidate> = Vec::new();
    for text in texts {
        let written = policy::parse(&text)?;
        // Those that take one are searched for.
        let label = written.label().to_owned();
        let policy = match written.policy().takes_budget() {
            true => written.at(policy::AMPLE)?,
            false => written.checked()?,
        };
        if candidates.iter().all(|other| other.label != label) {
            candidates.push(Candidate { label, policy: Ok(policy) });
        }
    }
    Ok(candidates)
}

/// `0.1` or `10%`.
fn share(text: &str) -> std::result::Result<f64, String> {
    let number = |text: &str| {
        text.trim()
            .parse::<f64>()
            .map_err(|_| format!("`{text}` is not a share such as 0.1 or 10%"))
    };
    let share = match text.trim().strip_suffix('%') {
        Some(percent) => number(percent)? / 100.0,
        None => number(text)?,
    };
    match share > 0.0 && share <= 1.0 {
        true => Ok(share),
        false => Err(format!("{text} is not above 0 and up to 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_of_every_method_is_a_policy() {
        let candidates = candidates(&[]).unwrap();
        let count = |name: &str| {
            let of = |candidate: &&Candidate| candidate.label.split(':').next() == Some(name);
            candidates.iter().filter(of).count()
        };
        assert_eq!(count("full"), 0);
        for method in methods().iter().filter(|method| method.name != "full") {
            assert_eq!(count(&method.name), variants(&method.name).len(), "{}", method.name);
        }
        // Each of them is a policy of its own.
        let files: Vec<String> =
            candidates.iter().map(|one| one.policy.as_ref().unwrap().to_toml().unwrap()).collect();
        for (i, file) in files.iter().enumerate() {
            assert!(!files[..i].contains(file), "{}", candidates[i].label);
        }
    }

    /// The page that says which policy to take recommends none that the search would not try.
    #[test]
    fn what_the_book_recommends_is_tried() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/which-policy.md");
        let page = std::fs::read_to_string(page).unwrap();
        let file = |candidate: &Candidate| candidate.policy.as_ref().unwrap().to_toml().unwrap();
        let tried: Vec<String> = candidates(&[]).unwrap().iter().map(file).collect();
        let rows = page.lines().skip_while(|line| !line.starts_with("| your case")).skip(2);
        let rows: Vec<&str> = rows.take_while(|line| line.starts_with('|')).collect();
        let labels = rows.iter().flat_map(|row| row.split('`').skip(1).step_by(2));
        let (mut found, names) = (0, methods());
        for label in labels.filter(|label| *label != "full") {
            // What a row says of parameters and families beside its methods.
            if names.iter().all(|method| Some(method.name.as_str()) != label.split(':').next()) {
                continue;
            }
            let policy = policy::parse(label).unwrap().or_at(policy::AMPLE).unwrap();
            assert!(tried.contains(&policy.to_toml().unwrap()), "{label}");
            found += 1;
        }
        assert!(found > 15, "{found} in {rows:?}");
    }

    #[test]
    fn what_is_named_with_parameters_is_taken_as_it_is() {
        let texts = ["snapkv:kernel=15", "random", "random"].map(String::from);
        let labels: Vec<String> =
            super::candidates(&texts).unwrap().into_iter().map(|one| one.label).collect();
        assert_eq!(labels, ["snapkv:kernel=15", "random"]);
        assert!(super::candidates(&["nosuch".into()]).is_err());
    }

    #[test]
    fn shares_are_numbers_or_percent() {
        assert_eq!(share("0.1"), Ok(0.1));
        assert_eq!(share("25%"), Ok(0.25));
        assert_eq!(share("1"), Ok(1.0));
        for text in ["0", "1.5", "120%", "x", "-1", "nan", "%"] {
            assert!(share(text).is_err(), "{text}");
        }
    }
}
