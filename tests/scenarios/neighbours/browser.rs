//! A headless browser: opens pages, returns their DOM, takes screenshots.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::run_dir::RunDir;
use haulout_lab::tools;
use tokio::process::Command;

/// The folder for screenshots. If it is not set, they are discarded.
const PICTURES: &str = "HAULOUT_PICTURES";
const WAIT_TIMEOUT: Duration = Duration::from_secs(180);
/// How often a picture is taken until it shows something.
const ATTEMPTS: usize = 4;
/// An empty page has about a tenth of this size.
const PICTURE_MIN: usize = 10_000;

#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// After two seconds: a page with an event stream never finishes loading.
    TwoSeconds,
    /// When its scripts have loaded everything.
    Loaded,
}

impl Until {
    fn argument(self) -> &'static str {
        match self {
            Self::TwoSeconds => "--timeout=2000",
            // Virtual time, which stops while the page loads something.
            Self::Loaded => "--virtual-time-budget=20000",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colours {
    Light,
    Dark,
}

/// A browser with a profile of its own.
#[derive(Debug)]
pub struct Browser {
    program: PathBuf,
    pictures: PathBuf,
    keeps_pictures: bool,
    dir: RunDir,
}

impl Browser {
    /// `None` if this machine has no browser, and `test` is skipped.
    pub fn find(test: &str) -> anyhow::Result<Option<Self>> {
        let Some(program) = tools::on_path(&["chromium", "chromium-browser", "google-chrome"]) else {
            tools::skip(test, "there is no chromium on PATH (apt-get install chromium)")?;
            return Ok(None);
        };
        let dir = RunDir::create()?;
        let kept = std::env::var_os(PICTURES).map(PathBuf::from);
        let keeps_pictures = kept.is_some();
        let pictures = kept.unwrap_or_else(|| dir.path().to_owned());
        std::fs::create_dir_all(&pictures)
            .with_context(|| format!("making the folder {}", pictures.display()))?;
        Ok(Some(Self {
            program,
            pictures,
            keeps_pictures,
            dir,
        }))
    }

    /// Whether screenshots are kept.
    pub fn keeps_pictures(&self) -> bool {
        self.keeps_pictures
    }

    /// The DOM of `url` after its scripts have run.
    pub async fn dom(&mut self, url: &str, until: Until) -> anyhow::Result<String> {
        let arguments = ["--dump-dom".to_owned(), "--window-size=1280,1400".to_owned()];
        self.open(url, until, &arguments).await
    }

    /// Saves a screenshot of `url` as `name`.png.
    pub async fn picture(
        &mut self,
        name: &str,
        url: &str,
        size: (u32, u32),
        colours: Colours,
        until: Until,
    ) -> anyhow::Result<()> {
        let file = self.pictures.join(format!("{name}.png"));
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        // 0 is dark and 1 is light.
        let scheme = u8::from(colours == Colours::Light);
        let arguments = [
            format!("--window-size={},{}", size.0, size.1),
            format!("--blink-settings=preferredColorScheme={scheme}"),
            format!("--screenshot={}", file.display()),
        ];
        // On a busy machine the browser may take the picture before it has painted anything.
        for _ in 1..ATTEMPTS {
            self.open(url, until, &arguments).await?;
            if check(&file, size).is_ok() {
                return Ok(());
            }
        }
        self.open(url, until, &arguments).await?;
        check(&file, size)
    }

    /// Opens `url` and returns the browser's output. `&mut`, because two processes cannot share a profile.
    async fn open(&mut self, url: &str, until: Until, arguments: &[String]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.program);
        command
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
            .args(["--no-proxy-server", "--disable-dev-shm-usage", "--no-first-run"])
            .arg(format!("--user-data-dir={}", self.dir.join("profile").display()))
            .arg(until.argument())
            .args(arguments)
            .arg(url)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let ended = tokio::time::timeout(WAIT_TIMEOUT, command.output()).await;
        let ended = ended.with_context(|| format!("the browser does not end at {url}"))??;
        let stderr = String::from_utf8_lossy(&ended.stderr);
        ensure!(
            ended.status.success(),
            "the browser ended with {}: {stderr}",
            ended.status
        );
        Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
    }
}

/// Fails unless `file` is a PNG of this size that is not empty.
fn check(file: &Path, size: (u32, u32)) -> anyhow::Result<()> {
    let png = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    let shown = size_of(&png).with_context(|| format!("reading {}", file.display()))?;
    ensure!(
        shown == size,
        "{} is {shown:?} large, and not {size:?}",
        file.display()
    );
    ensure!(png.len() > PICTURE_MIN, "{} shows nothing", file.display());
    Ok(())
}

/// Width and height of a PNG.
fn size_of(png: &[u8]) -> anyhow::Result<(u32, u32)> {
    ensure!(png.starts_with(b"\x89PNG\r\n\x1a\n"), "it is no PNG");
    let number = |at: usize| {
        let bytes = png.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_be_bytes).context("it is cut off")
    };
    Ok((number(16)?, number(20)?))
}
