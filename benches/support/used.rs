//! The CPU and memory of a process, from /proc.

use anyhow::Context as _;

/// What a process has used so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Used {
    pub cpu_seconds: f64,
    pub resident_mib: f64,
    pub peak_mib: f64,
}

/// What a process has used so far.
pub fn used(pid: u32) -> anyhow::Result<Used> {
    // On Linux, CPU is counted in ticks of 10 ms.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat without a name")?;
    let ticks = |n: usize| -> f64 {
        let field = fields.split_whitespace().nth(n);
        field.and_then(|field| field.parse().ok()).unwrap_or_default()
    };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mib = |name: &str| -> f64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next());
        kib.and_then(|kib| kib.parse::<f64>().ok()).unwrap_or_default() / 1024.0
    };
    Ok(Used {
        cpu_seconds: (ticks(11) + ticks(12)) / TICKS,
        resident_mib: mib("VmRSS:"),
        peak_mib: mib("VmHWM:"),
    })
}
