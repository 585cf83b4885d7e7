//! JSON lines for programs on stdout, text for people on stderr.

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value;

/// What was said so far.
#[derive(Default)]
pub struct Output {
    failed: usize,
}

impl Output {
    /// A line for programs.
    pub fn line(&self, value: Value) {
        // Whoever reads it may have left; the rest of the run still counts.
        let _ = writeln!(std::io::stdout().lock(), "{value}");
    }

    /// What comes next.
    pub fn title(&self, text: &str) {
        eprintln!("\n== {text}");
    }

    /// A line for people.
    pub fn say(&self, text: &str) {
        eprintln!("   {text}");
    }

    /// A check and how it ended; the process ends with 1 if one failed.
    pub fn check(&mut self, section: &str, name: &str, outcome: Result<(), String>) {
        let error = outcome.err();
        self.line(serde_json::json!({ "section": section, "name": name, "ok": error.is_none(), "error": error }));
        if let Some(e) = error {
            self.failed += 1;
            self.say(&format!("FAILED {section} {name}: {e}"));
        }
    }

    /// The last word.
    pub fn end(&self) -> ExitCode {
        match self.failed {
            0 => {
                eprintln!("\nall checks held");
                ExitCode::SUCCESS
            }
            n => {
                eprintln!("\n{n} checks FAILED");
                ExitCode::FAILURE
            }
        }
    }
}

/// The median; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// To three significant digits and more.
pub fn round(value: f64) -> f64 {
    if !value.is_finite() || value == 0.0 {
        return 0.0;
    }
    let digits = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * digits).round() / digits
}

/// What a caught panic said.
pub fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_else(|| "a panic".to_string())
}
