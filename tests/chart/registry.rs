//! A release that is pushed to a registry on loopback, and installed from there.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use haulout_lab::build;
use haulout_lab::ports::Port;
use haulout_lab::process::{Process, ProcessSpec};
use haulout_lab::run_dir::RunDir;
use haulout_lab::scenario::run_scenario;
use haulout_lab::wait::until;
use tokio::net::TcpStream;

use crate::helm::{root, tools};
use crate::release::{Release, fixture, folder};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const START: Duration = Duration::from_secs(60);

/// The registry, and what runs beside it.
pub struct Registry {
    _process: Process,
    port: Port,
    run: RunDir,
    /// The folder with `crane`.
    bin: PathBuf,
}

impl Registry {
    pub async fn start() -> anyhow::Result<Self> {
        let run = RunDir::create()?;
        let (bin, port) = (run.join("bin"), Port::reserve()?);
        std::fs::create_dir(&bin)?;
        let crane = build::part("registry").await?;
        std::os::unix::fs::symlink(&crane, bin.join("crane"))?;
        let process = ProcessSpec::leashed("registry", &crane, run.join("registry.log"))
            .args(["registry", "serve", "--address"])
            .arg(format!("127.0.0.1:{}", port.number()))
            .spawn()?;
        until("the registry to listen", START, async || {
            let connected = TcpStream::connect(("127.0.0.1", port.number())).await;
            Ok(connected.ok().map(drop))
        })
        .await?;
        Ok(Self {
            _process: process,
            port,
            run,
            bin,
        })
    }

    /// What `REGISTRY` is for the release.
    fn name(&self) -> String {
        format!("127.0.0.1:{}/lab", self.port.number())
    }

    /// A program with the tools on its PATH, and nothing of this machine's settings of helm.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command
            .current_dir(root())
            .env(
                "PATH",
                format!("{}:{}:{path}", self.bin.display(), tools().display()),
            )
            // Logins of this machine's user.
            .env("DOCKER_CONFIG", self.run.path())
            .env_remove("KUBECONFIG");
        for name in ["HELM_CONFIG_HOME", "HELM_CACHE_HOME", "HELM_DATA_HOME"] {
            command.env(name, self.run.join("helm"));
        }
        command
    }

    fn output_of(&self, program: &str, args: &[&str]) -> anyhow::Result<String> {
        let output = self.command(program).args(args).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "{program} {args:?}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(text)
    }

    /// The port on loopback.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Runs helm with the chart in the registry: `verb` is `install` or `upgrade`.
    pub fn helm(&self, verb: &str, release: &Release<'_>, flags: &[&str]) -> anyhow::Result<()> {
        let chart = format!("oci://{}/charts/haulout", self.name());
        let args = [verb, release.name(), &chart, "--plain-http", "--version", VERSION];
        let all = [&args[..], &release.helm_flags(), flags].concat();
        self.output_of("helm", &all).map(drop)
    }

    /// Makes and pushes the release with this program, and returns the folder of its files.
    pub fn release(&self, program: &Path) -> anyhow::Result<PathBuf> {
        let programs = self.run.join("programs");
        let platform = programs.join(format!("linux_{}", arch()));
        std::fs::create_dir_all(&platform)?;
        // Without what a debugger needs, which takes minutes to pack.
        let packed = platform.join("haulout");
        self.output_of("strip", &["-o", folder(&packed), folder(program)])?;
        let out = self.run.join("out");
        let output = self
            .command(root().join(".ci/release"))
            .arg("all")
            .env("REGISTRY", self.name())
            .env("OUT", &out)
            .env("PROGRAMS", &programs)
            .env("SIGN", "no")
            .env("PLAIN_HTTP", "1")
            .output()?;
        ensure!(
            output.status.success(),
            ".ci/release all: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(out)
    }
}

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

#[test]
fn release_is_pushed_to_a_registry_and_installed_from_there() {
    run_scenario(async {
        let registry = Registry::start().await?;
        let out = registry.release(Path::new(env!("CARGO_BIN_EXE_haulout")))?;
        let image = format!("{}/haulout:{VERSION}", registry.name());

        // The image that is pulled is the one that was pushed, and its program starts.
        let pushed = std::fs::read_to_string(out.join("image.digest"))?;
        let pulled = registry.output_of("crane", &["digest", "--insecure", &image])?;
        ensure!(pulled.trim() == pushed.trim(), "{pulled} and {pushed}");
        let (tar, folder) = (registry.run.join("root.tar"), registry.run.join("root"));
        let platform = format!("linux/{}", arch());
        let export = ["export", "--insecure", "--platform", &platform, &image];
        registry.output_of("crane", &[&export[..], &[tar.to_str().unwrap()]].concat())?;
        std::fs::create_dir(&folder)?;
        let unpack = ["-xf", tar.to_str().unwrap(), "-C", folder.to_str().unwrap()];
        registry.output_of("tar", &unpack)?;
        let program = folder.join("haulout");
        let said = registry.output_of(program.to_str().unwrap(), &["version"])?;
        ensure!(said.trim() == format!("haulout {VERSION}"), "{said}");
        ensure!(folder.join("licenses/THIRD-PARTY-NOTICES").is_file());

        // The checksums are those of the files.
        let assets = out.join("assets");
        let mut check = registry.command("sha256sum");
        check
            .args(["--check", "--quiet", "SHA256SUMS"])
            .current_dir(&assets);
        ensure!(check.status()?.success(), "the checksums differ");
        let manifests = std::fs::read_to_string(assets.join("haulout.yaml"))?;
        ensure!(
            manifests.contains(&format!("image: \"{image}\"")),
            "the manifests name another image"
        );

        // The chart needs no value to find the image beside it.
        let fixture = fixture("pulled", "aa000000-0000-4000-8000-000000000061", &["esx1"]).await?;
        let release = Release::prepare(&fixture).await?;
        registry.helm("install", &release, &["--take-ownership"])?;
        let spec = crate::release::pod_spec(&release.deployment().await?)?;
        ensure!(spec.containers[0].image.as_deref() == Some(image.as_str()));
        release.wait_admitted().await?;

        let node = fixture.node_name("gpu1");
        let mut replica = release.start().await?;
        replica.wait_ready().await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        replica.stop().await
    });
}
