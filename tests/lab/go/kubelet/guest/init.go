package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	containerdSocket = "/run/containerd/containerd.sock"
	uuidFile         = "/etc/lab/product_uuid"
	pluginFolder     = "/var/lib/kubelet/device-plugins"
	// patience is how long a service may take to start or to stop.
	patience = 30 * time.Second
)

func containerdConfig(c *Config) string {
	return fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = "%s"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "%s"

[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  # A machine may lack CAP_SYS_RESOURCE.
  restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/opt/cni/bin"]
  conf_dir = "/etc/cni/net.d"
  use_internal_loopback = true

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "%s/runc"
  SystemdCgroup = false
`, containerdSocket, c.Image, programs)
}

// guest is the running system.
type guest struct {
	config   *Config
	settings Settings
	plugin   *plugin
	kubelet  *service
	// kubeletSince is when the kubelet was started first.
	kubeletSince time.Time
	containerd   *service
	logind       *logind
}

// initProcess is the first process of a guest. It starts the services, follows
// the commands of the host, and stops the services in order when the guest is
// to shut down. With its end the guest is off.
func initProcess(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: guest init CONFIG")
	}
	config, err := readConfig(args[0])
	if err != nil {
		return err
	}
	log.SetFlags(log.Lmicroseconds)
	log.Printf("boot")
	go reap()
	commands := make(chan Command)
	go readCommands(commands)
	g := &guest{config: config, plugin: newPlugin(config.Resource)}
	first := <-commands
	if first.Settings == nil {
		return errors.New("the first command has no settings")
	}
	g.settings = *first.Settings
	if err := config.Network.connectGuest(); err != nil {
		return err
	}
	if err := g.startContainerd(); err != nil {
		return err
	}
	retry := time.NewTicker(100 * time.Millisecond)
	defer retry.Stop()
	for {
		if err := g.follow(); err != nil {
			log.Printf("%v", err)
		}
		select {
		case c, ok := <-commands:
			if !ok {
				return nil
			}
			if c.Settings != nil {
				g.settings = *c.Settings
			}
			if c.Do == "shutdown" {
				g.shutDown()
				return nil
			}
		case <-retry.C:
		}
	}
}

func readCommands(commands chan<- Command) {
	defer close(commands)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c Command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			log.Printf("command %q: %v", lines.Text(), err)
			continue
		}
		commands <- c
	}
}

// follow makes the services what the settings say.
func (g *guest) follow() error {
	if g.kubelet != nil && (!g.settings.RunsKubelet || g.kubelet.uuid != g.settings.SystemUUID || g.kubelet.grace != g.settings.Grace) {
		g.kubelet.stop()
		g.kubelet = nil
	}
	if g.kubelet != nil && g.kubelet.hasEnded() {
		log.Printf("the kubelet has ended: see its log")
		g.kubelet = nil
		// As systemd does.
		time.Sleep(200 * time.Millisecond)
	}
	if g.settings.RunsKubelet && g.kubelet == nil {
		if err := g.startKubelet(); err != nil {
			return err
		}
	}
	after := time.Duration(g.settings.GPUsAfterMs) * time.Millisecond
	if g.kubelet != nil && time.Since(g.kubeletSince) >= after {
		return g.plugin.offer(g.settings.GPUs)
	}
	return nil
}

func (g *guest) startContainerd() error {
	var err error
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:" + programs + "/containerd:" + programs
	g.containerd, err = start("containerd", "PATH="+path, programs+"/containerd/containerd", "--config=/etc/lab/containerd.toml")
	if err != nil {
		return err
	}
	err = waitFor("containerd to serve", func() bool {
		c, err := net.Dial("unix", containerdSocket)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
	if err != nil {
		return err
	}
	// The image is on the disk from the first boot on.
	done := "/var/lib/containerd/imported"
	if _, err := os.Stat(done); err == nil {
		return nil
	}
	archive := "/tmp/image.tar"
	if err := writeImage(archive, g.config.Image); err != nil {
		return err
	}
	defer os.Remove(archive)
	ctr, err := start("import", "", programs+"/containerd/ctr", "--address="+containerdSocket, "--namespace=k8s.io", "images", "import", archive)
	if err != nil {
		return err
	}
	select {
	case status := <-ctr.ended:
		if status != 0 {
			return fmt.Errorf("the import of the image ended with %d: see /var/log/import.log", status)
		}
	case <-time.After(patience):
		return fmt.Errorf("the import of the image did not end within %v", patience)
	}
	log.Printf("imported %s", g.config.Image)
	return os.WriteFile(done, nil, 0o644)
}

func (g *guest) startKubelet() error {
	uuid := g.settings.SystemUUID
	if err := os.WriteFile(uuidFile, []byte(uuid+"\n"), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile("/etc/machine-id", []byte(strings.ReplaceAll(uuid, "-", "")+"\n"), 0o644); err != nil {
		return err
	}
	args := append([]string{programs + "/kubelet/kubelet"}, g.config.KubeletArgs...)
	if grace := g.settings.Grace; grace > 0 {
		if g.logind == nil {
			l, err := startLogind(time.Duration(grace) * time.Second)
			if err != nil {
				return err
			}
			g.logind = l
		}
		g.logind.forget()
		if err := writeGrace(grace); err != nil {
			return err
		}
		args = append(args, "--config-dir=/etc/lab/kubelet.conf.d")
	}
	k, err := start("kubelet", "", args...)
	if err != nil {
		return err
	}
	k.uuid, k.grace = uuid, g.settings.Grace
	g.kubelet = k
	if g.kubeletSince.IsZero() {
		g.kubeletSince = time.Now()
	}
	return nil
}

// writeGrace gives the kubelet a shutdown grace period, a third of it for
// critical pods.
func writeGrace(seconds int) error {
	dir := "/etc/lab/kubelet.conf.d"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	config := fmt.Sprintf(`{
  "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
  "shutdownGracePeriod": "%ds", "shutdownGracePeriodCriticalPods": "%ds"
}`, seconds, seconds/3)
	return os.WriteFile(filepath.Join(dir, "10-grace.conf"), []byte(config), 0o644)
}

// shutDown stops the services in the order of a system that shuts down.
func (g *guest) shutDown() {
	log.Printf("shutdown")
	slow := time.After(time.Duration(g.settings.ShutdownMs) * time.Millisecond)
	if g.logind != nil && g.kubelet != nil {
		g.logind.prepareForShutdown()
	}
	<-slow
	g.plugin.stop()
	if g.kubelet != nil {
		g.kubelet.stop()
	}
	g.containerd.stop()
	unix.Sync()
	log.Printf("off")
}

// service is a process that this one has started.
type service struct {
	name  string
	pid   int
	ended chan int
	// uuid and grace are what a kubelet was started with.
	uuid  string
	grace int
}

var (
	servicesMu sync.Mutex
	services   = map[int]*service{}
)

// start starts a process with a log of its own. env is one more variable.
func start(name, env string, args ...string) (*service, error) {
	out, err := os.OpenFile("/var/log/"+name+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	if env != "" {
		cmd.Env = append(os.Environ(), env)
	}
	// Its end may come before it is in the list.
	servicesMu.Lock()
	defer servicesMu.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &service{name: name, pid: cmd.Process.Pid, ended: make(chan int, 1)}
	services[s.pid] = s
	log.Printf("%s runs", name)
	return s, nil
}

// reap collects processes that have ended: those of this one, and orphans.
func reap() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	for range signals {
		for {
			var status unix.WaitStatus
			pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
			servicesMu.Lock()
			s := services[pid]
			delete(services, pid)
			servicesMu.Unlock()
			if s != nil {
				log.Printf("%s has ended: %d", s.name, status)
				s.ended <- int(status)
			}
		}
	}
}

func (s *service) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// stop ends a service in order, or kills it.
func (s *service) stop() {
	_ = unix.Kill(s.pid, unix.SIGTERM)
	select {
	case <-s.ended:
	case <-time.After(patience):
		_ = unix.Kill(s.pid, unix.SIGKILL)
		<-s.ended
	}
}

func waitFor(what string, holds func() bool) error {
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %v for %s", patience, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}
