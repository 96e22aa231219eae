use std::{num::NonZeroUsize, path::PathBuf};

use anyhow::{Context, Result};
use briquette::{Budget, Policy, device};
use briquette_eval::policy;
use briquette_models::{DeviceMap, MemoryPlan, ModelConfig, WeightBits};
use briquette_report::table::{Column, Sheet};
use burn::tensor::Device;
use serde::Serialize;

use crate::{
    args::{
        defaults,
        model::{ModelArgs, open_devices},
        policy_text::PolicyText,
        size,
    },
    error::Error,
    terminal::output::{Shown, TableArgs, bytes},
};

const EXAMPLES: &str = "\
Examples:
  briquette plan --model MODEL --context 32768 --batch 8 --memory 24GiB
  briquette plan --model MODEL --quantize 4 --policies snapkv,kivi --budgets 50%,10%";

/// What a plan of a memory leaves out.
const NOT_COUNTED: &str = "; activations, and room for tokens to come, are not counted";

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Rows of a batch, each of as many tokens as the context
    #[arg(long, value_name = "N", default_value = "1", help_heading = "Memory")]
    batch: NonZeroUsize,
    /// Memory of each device to fill: 24GiB [default: what the devices have, where they tell]
    ///
    /// The most rows at this context, and the longest context at this batch, are those that fit
    /// beside the weights.
    #[arg(long, value_name = "BYTES", value_parser = size::bytes, help_heading = "Memory")]
    memory: Option<usize>,
    /// Methods of `briquette policies`, or policy files
    ///
    /// Parameters are changed as in `snapkv:kernel=15`. Files are TOML or JSON.
    #[arg(
        long,
        visible_alias = "policy",
        value_name = "NAME|FILE,…",
        value_delimiter = ',',
        default_value = defaults::PLANNED,
        value_parser = PolicyText,
        hide_possible_values = true,
        help_heading = "Compression"
    )]
    policies: Vec<String>,
    /// Budgets of every policy that takes one: 256, 25%, 512KiB
    #[arg(
        long,
        visible_alias = "budget",
        value_name = "B,…",
        value_delimiter = ',',
        default_value = "75%,50%,25%,12.5%",
        help_heading = "Compression"
    )]
    budgets: Vec<Budget>,
    #[command(flatten)]
    tables: TableArgs,
}

/// A policy at a budget.
#[derive(Serialize)]
struct Planned {
    policy: String,
    /// None of a policy that keeps all tokens.
    budget: Option<String>,
    /// Bytes of a cache of this batch at this context.
    cache_bytes: usize,
    /// The most rows at this context.
    rows: Option<usize>,
    /// The longest context at this batch.
    context: Option<usize>,
    /// Whether what is held depends on the text, and may be less.
    at_most: bool,
}

/// A policy at a budget that is not planned.
#[derive(Serialize)]
struct Refused {
    policy: String,
    budget: Option<String>,
    error: String,
}

/// A device of the plan.
#[derive(Serialize)]
struct OnDevice {
    #[serde(skip)]
    device: Device,
    #[serde(rename = "device")]
    name: String,
    weight_bytes: usize,
    /// None where the device does not tell.
    memory: Option<u64>,
}

/// The JSON of a plan.
#[derive(Serialize)]
struct Report {
    model: String,
    device: String,
    dtype: &'static str,
    quantize: Option<WeightBits>,
    context: usize,
    batch: usize,
    weight_bytes: usize,
    devices: Vec<OnDevice>,
    policies: Vec<Planned>,
    refused: Vec<Refused>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    args.tables.output.gate(inputs(&args))?;
    let policies = policies(&args)?;
    let (name, devices) = open_devices(args.model.device())?;
    let dir = args.model.dir()?;
    let failed = || format!("cannot plan the model in {}", dir.display());
    let config = ModelConfig::from_folder(&dir).with_context(failed)?;
    let context = args.model.context.unwrap_or(config.max_position_embeddings);
    config.clone().with_context(context)?;
    let dtype = args.model.dtype_on(&dir, &devices);
    let bits = args.model.quantize;
    let plan =
        MemoryPlan::of(config, &dir, devices.clone(), dtype.burn(), bits).with_context(failed)?;
    let devices = on_devices(&plan, &name, &devices, args.memory);
    for OnDevice { name, weight_bytes, memory, .. } in &devices {
        let weights = *weight_bytes as u64;
        if let Some(memory) = memory.filter(|memory| *memory < weights) {
            let (weights, memory) = (bytes(weights), bytes(memory));
            return Err(Error::WeightsTooLarge { weights, memory, device: name.clone() }.into());
        }
    }
    let mut report = Report {
        model: dir.display().to_string(),
        device: name,
        dtype: dtype.name(),
        quantize: bits,
        context,
        batch: args.batch.get(),
        weight_bytes: plan.weight_bytes(),
        devices,
        policies: Vec::new(),
        refused: Vec::new(),
    };
    for (label, policy) in policies {
        match report.planned(&plan, &label, &policy) {
            Ok(planned) => report.policies.push(planned),
            Err(error) => {
                let budget = policy.budget().map(|budget| budget.to_string());
                report.refused.push(Refused { policy: label, budget, error: error.to_string() });
            }
        }
    }
    if report.policies.is_empty() {
        return Err(Error::NothingPlanned { refusals: report.remarks() }.into());
    }
    args.tables.write(&report.shown(&args.budgets), &report)
}

/// The devices of a plan with their names, as they stand in the list of all.
fn on_devices(
    plan: &MemoryPlan,
    names: &str,
    devices: &DeviceMap,
    memory: Option<usize>,
) -> Vec<OnDevice> {
    let names = names.split(',').map(|name| name.split('=').next().unwrap_or(name));
    let names: Vec<_> = devices.devices().iter().zip(names).collect();
    let of = |(device, weight_bytes): &(Device, usize)| OnDevice {
        name: names.iter().find(|(one, _)| *one == device).map_or("", |(_, name)| name).to_owned(),
        weight_bytes: *weight_bytes,
        memory: memory.map(|bytes| bytes as u64).or_else(|| device::memory(device)),
        device: device.clone(),
    };
    plan.weights_of_devices().iter().map(of).collect()
}

/// Files and folders that are read.
fn inputs(args: &Args) -> Vec<PathBuf> {
    [args.model.inputs(), policy::inputs(&args.policies)].concat()
}

/// The policies with their names in tables, at each budget if they take one.
fn policies(args: &Args) -> Result<Vec<(String, Policy)>> {
    let mut all = Vec::new();
    for text in &args.policies {
        let written = policy::parse(text)?;
        let label = written.label().to_owned();
        if !written.policy().takes_budget() {
            all.push((label, written.checked()?));
            continue;
        }
        for budget in &args.budgets {
            all.push((label.clone(), written.clone().at(*budget)?));
        }
    }
    Ok(all)
}

impl Report {
    fn planned(
        &self,
        plan: &MemoryPlan,
        label: &str,
        policy: &Policy,
    ) -> briquette_models::Result<Planned> {
        let Self { context, batch, .. } = *self;
        let memory = |device: &Device| {
            let of = self.devices.iter().find(|of| of.device == *device);
            of.and_then(|of| of.memory).unwrap_or(0)
        };
        let told = self.tells_memory();
        let rows = told.then(|| plan.most_rows(policy, context, memory));
        let longest = told.then(|| plan.longest_context(policy, batch, memory));
        Ok(Planned {
            policy: label.to_owned(),
            budget: policy.budget().map(|budget| budget.to_string()),
            cache_bytes: plan.cache_bytes(policy, context, batch)?,
            rows: rows.transpose()?,
            context: longest.transpose()?,
            at_most: policy.reducer().makes_clusters(),
        })
    }

    fn tells_memory(&self) -> bool {
        self.devices.iter().all(|of| of.memory.is_some())
    }

    /// The memory of each device, with what weights take of it where there are several.
    fn memory(&self) -> Option<String> {
        let memory = |of: &OnDevice| of.memory.map(bytes);
        if let [one] = &*self.devices {
            return memory(one);
        }
        let weights = |of: &OnDevice| bytes(of.weight_bytes as u64);
        let line =
            |of| Some(format!("{} on {}, {} for weights", memory(of)?, of.name, weights(of)));
        let lines: Option<Vec<_>> = self.devices.iter().map(line).collect();
        Some(lines?.join("\n         "))
    }

    fn shown(&self, budgets: &[Budget]) -> Shown {
        let Self { model, device, dtype, context, batch, .. } = self;
        let prompts = if *batch == 1 { "prompt" } else { "prompts" };
        let mut before = format!(
            "weights  {} of {model}, in {dtype} on {device}\ncache    of {batch} {prompts} of {context} tokens\n",
            bytes(self.weight_bytes as u64)
        );
        if let Some(memory) = self.memory() {
            before += &format!("memory   {memory}{NOT_COUNTED}\n");
        }
        let mut tables =
            vec![self.sheet("cache", budgets, |planned| Some(bytes(planned.cache_bytes as u64)))];
        if self.tells_memory() {
            let number = |number: Option<usize>| number.map(|number| number.to_string());
            tables.push(self.sheet("most rows", budgets, |planned| number(planned.rows)));
            tables.push(self.sheet("longest context", budgets, |planned| number(planned.context)));
        }
        Shown { before, tables, behind: self.remarks() }
    }

    /// A table of one number, with a row for each policy and a column for each budget.
    fn sheet(
        &self,
        number: &str,
        budgets: &[Budget],
        cell: impl Fn(&Planned) -> Option<String>,
    ) -> Sheet {
        let columns = [None].into_iter().chain(budgets.iter().map(|it| Some(it.to_string())));
        let columns: Vec<Option<String>> = columns.collect();
        let heads = columns.iter().map(|budget| {
            let head = budget.clone().unwrap_or_else(|| "100%".into());
            Column::right(head)
        });
        let mut sheet = Sheet::new([Column::left(number)].into_iter().chain(heads));
        for row in self.policies.chunk_by(|a, b| a.policy == b.policy) {
            let Some(first) = row.first() else { continue };
            let of = |budget: &Option<String>| {
                let planned = row.iter().find(|planned| planned.budget == *budget);
                planned.and_then(&cell).unwrap_or_else(|| "-".into())
            };
            sheet.row([first.policy.clone()].into_iter().chain(columns.iter().map(of)));
        }
        sheet
    }

    /// What is to be known of some policies.
    fn remarks(&self) -> String {
        let mut remarks: Vec<String> = Vec::new();
        let at_most = self.policies.iter().filter(|planned| planned.at_most);
        remarks.extend(at_most.map(|Planned { policy, .. }| {
            format!("{policy} takes at most this: less where fewer tokens share entries\n")
        }));
        let refused = self.refused.iter();
        remarks.extend(refused.map(|Refused { policy, error, .. }| format!("{policy}: {error}\n")));
        remarks.dedup();
        remarks.concat()
    }
}
