use briquette::Budget;

use super::plot::MarkedAxis;

/// The unit of a budget. Budgets of two units have no axis in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BudgetUnit {
    Tokens,
    Share,
    Bytes,
    /// A text that is no budget.
    Other,
}

impl BudgetUnit {
    /// The unit of a budget as text, and how many of it.
    pub(super) fn of(budget: &str) -> (Self, f64) {
        match budget.parse::<Budget>() {
            Ok(Budget::Tokens(tokens)) => (Self::Tokens, tokens as f64),
            Ok(Budget::Ratio(ratio)) => (Self::Share, ratio),
            Ok(Budget::Bytes(bytes)) => (Self::Bytes, bytes as f64),
            Err(_) => (Self::Other, 0.0),
        }
    }

    /// The name of an axis of such budgets.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Tokens => "budget, tokens",
            Self::Share => "budget, share of the tokens",
            Self::Bytes => "budget, bytes",
            Self::Other => "budget",
        }
    }
}

/// Axis for budgets of one unit, by the logarithm of their number, since they are mostly chosen by
/// doubling.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BudgetAxis {
    pub(super) unit: BudgetUnit,
    /// From small to large, each once.
    pub(super) budgets: Vec<String>,
}

impl BudgetAxis {
    /// An axis for each unit of these budgets.
    pub(super) fn each<'a>(budgets: impl IntoIterator<Item = &'a str>) -> Vec<Self> {
        let mut axes: Vec<Self> = Vec::new();
        for budget in budgets {
            let (unit, _) = BudgetUnit::of(budget);
            match axes.iter_mut().find(|axis| axis.unit == unit) {
                Some(axis) if axis.budgets.iter().any(|other| other == budget) => {}
                Some(axis) => axis.budgets.push(budget.to_owned()),
                None => axes.push(Self { unit, budgets: vec![budget.to_owned()] }),
            }
        }
        for axis in &mut axes {
            axis.budgets.sort_by(|a, b| BudgetUnit::of(a).1.total_cmp(&BudgetUnit::of(b).1));
        }
        axes.sort_by_key(|axis| axis.unit);
        axes
    }

    /// Place of a budget; `None` if it is on another axis.
    pub(super) fn place(&self, budget: &str) -> Option<f64> {
        let index = self.budgets.iter().position(|other| other == budget)?;
        let (_, number) = BudgetUnit::of(budget);
        Some(if number > 0.0 { number.log2() } else { index as f64 })
    }

    /// The axis as it is drawn.
    pub(super) fn marked(&self) -> MarkedAxis {
        let mark = |budget: &String| Some((self.place(budget)?, budget.clone()));
        let label = match self.budgets.len() {
            0 | 1 => self.unit.label().to_owned(),
            _ if self.unit == BudgetUnit::Other => self.unit.label().to_owned(),
            _ => format!("{} (log scale)", self.unit.label()),
        };
        MarkedAxis { label, marks: self.budgets.iter().filter_map(mark).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_of_one_unit_share_an_axis_of_numbers() {
        let axes = BudgetAxis::each(["256", "64", "25%", "512", "2KiB", "64", "50%"]);
        let units: Vec<BudgetUnit> = axes.iter().map(|axis| axis.unit).collect();
        assert_eq!(units, [BudgetUnit::Tokens, BudgetUnit::Share, BudgetUnit::Bytes]);
        assert_eq!(axes[0].budgets, ["64", "256", "512"]);
        // Twice as far from 64 to 256 as from there to 512.
        assert_eq!(
            axes[0].marked().marks.iter().map(|mark| mark.0).collect::<Vec<_>>(),
            [6.0, 8.0, 9.0]
        );
        assert_eq!(axes[1].marked().label, "budget, share of the tokens (log scale)");
        assert_eq!(axes[2].marked().label, "budget, bytes");
        assert_eq!((axes[1].place("25%"), axes[1].place("64")), (Some(-2.0), None));
    }
}
