// The lab's Kubernetes control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl, in one
// binary. The first argument picks one; kubectl is picked by that name of the program, because it looks for its plugins
// as kubectl does.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubectl/pkg/cmd"
	kubectl "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	if filepath.Base(os.Args[0]) == "kubectl" {
		kubectl.CheckErr(cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()))
		return
	}
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: kube etcd|kube-apiserver|kube-controller-manager|kube-scheduler [flags], or kubectl as the name of this program")
		os.Exit(2)
	}
	part := os.Args[1]
	// Each part parses os.Args itself and must find itself as the program
	// name.
	os.Args = append([]string{part}, os.Args[2:]...)

	if os.Getenv("HAULOUT_LAB_STDIN_LEASH") == "1" {
		go leash()
	}

	switch part {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(controllers.NewControllerManagerCommand()))
	case "kube-scheduler":
		os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
	default:
		fmt.Fprintf(os.Stderr, "kube: unknown part %q: expected etcd, kube-apiserver, kube-controller-manager or kube-scheduler\n", part)
		os.Exit(2)
	}
}

// leash ends this process when stdin reaches EOF. The starter holds the other
// end of that pipe, and the kernel closes it however the starter ends, also
// after SIGKILL.
func leash() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	// A starter that was killed could not remove its directory. The name is
	// checked, so that a mistyped variable removes nothing else.
	dir := os.Getenv("HAULOUT_LAB_REMOVE_AT_EOF")
	if filepath.IsAbs(dir) && strings.HasPrefix(filepath.Base(dir), "haulout-lab-") {
		// The sibling parts end at the same time and may still write a file
		// while this runs.
		for try := 0; try < 20; try++ {
			if os.RemoveAll(dir) == nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	os.Exit(0)
}
