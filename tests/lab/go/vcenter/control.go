package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/vmware/govmomi/vim25/types"
)

// Control is the endpoint with which a test or a person acts as the operator
// and as the hardware. It has its own port, so it works while the SDK is down.
type Control struct {
	v      *VCenter
	server *Server
}

// mistake is an error in the request.
type mistake struct{ error }

func badRequest(format string, args ...any) error { return mistake{fmt.Errorf(format, args...)} }

func decodeStrict(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// action handles one request; the result is written as JSON.
type action func(r *http.Request, body []byte) (any, error)

// handler maps the paths that the README lists.
func (c *Control) handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, a := range map[string]action{
		"GET /state":                        c.state,
		"GET /journal":                      c.journal,
		"POST /hosts":                       c.addHost,
		"DELETE /hosts/{host}":              c.removeHost,
		"POST /hosts/{host}/enter":          c.enter,
		"POST /hosts/{host}/exit":           c.exit,
		"POST /hosts/{host}/cancel":         c.cancel,
		"POST /hosts/{host}/fail":           c.fail,
		"POST /hosts/{host}/task":           c.hostTask,
		"POST /vms/{vm}/task":               c.vmTask,
		"POST /hosts/{host}/rename":         c.rename,
		"POST /hosts/{host}/partial":        c.partial,
		"POST /hosts/{host}/connection":     c.connection,
		"POST /hosts/{host}/devices":        c.addDevice,
		"DELETE /hosts/{host}/devices/{id}": c.removeDevice,
		"POST /vms":                         c.addVM,
		"DELETE /vms/{vm}":                  c.removeVM,
		"PATCH /vms/{vm}":                   c.patchVM,
		"POST /vms/{vm}/on":                 c.powerOn,
		"POST /vms/{vm}/off":                c.power(c.v.powerOff, "PowerOffVM_Task"),
		"POST /vms/{vm}/reset":              c.power(c.v.reset, "ResetVM_Task"),
		"POST /vms/{vm}/shutdown":           c.shutdown,
		"POST /vms/{vm}/ended":              c.ended,
		"POST /vms/{vm}/move":               c.move,
		"PATCH /datastores/{datastore}":     c.setDatastore,
		"POST /faults":                      c.addFault,
		"GET /faults":                       c.faults,
		"DELETE /faults":                    c.clearFaults,
		"DELETE /faults/{id}":               c.removeFault,
		"POST /attributes":                  c.addAttribute,
		"POST /sessions/kill":               c.kill,
		"POST /restart":                     c.restart,
		"PATCH /settings":                   c.settings,
		"POST /change-rate":                 c.changeRate,
		"GET /traffic":                      c.traffic,
	} {
		mux.HandleFunc(pattern, answer(a))
	}
	return mux
}

type ref = types.ManagedObjectReference

func answer(a action) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		var out any
		if err == nil {
			out, err = a(r, body)
		}
		status := http.StatusOK
		if err != nil {
			status = http.StatusConflict
			var m mistake
			switch {
			case errors.Is(err, errUnknown):
				status = http.StatusNotFound
			case errors.As(err, &m):
				status = http.StatusBadRequest
			}
			out = map[string]string{"error": err.Error()}
		}
		if out == nil {
			out = struct{}{}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(out)
	}
}

// decode reads an optional JSON body.
func decode(body []byte, into any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	if err := decodeStrict(body, into); err != nil {
		return badRequest("request body: %w", err)
	}
	return nil
}

// who is the user name of the operator, by default "operator".
func who(r *http.Request) caller {
	if u := r.URL.Query().Get("user"); u != "" {
		return caller{User: u}
	}
	return caller{User: "operator"}
}

// number reads an optional query parameter.
func number(r *http.Request, name string, otherwise int64) (int64, error) {
	s := r.URL.Query().Get(name)
	if s == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, badRequest("%s=%q: not a number", name, s)
	}
	return n, nil
}

// poll calls look until it is satisfied or the time has passed. look returns a
// channel that the next change closes.
func poll(r *http.Request, look func() (satisfied bool, next <-chan struct{})) error {
	wait, err := number(r, "waitMs", 0)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(wait)*time.Millisecond)
	defer cancel()
	for {
		satisfied, next := look()
		if satisfied {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *Control) state(r *http.Request, _ []byte) (any, error) {
	after, err := number(r, "after", -1)
	if err != nil {
		return nil, err
	}
	var s State
	err = poll(r, func() (bool, <-chan struct{}) {
		c.v.mu.Lock()
		defer c.v.mu.Unlock()
		s = c.v.state()
		return s.Rev > after, c.v.changed
	})
	return s, err
}

func (c *Control) journal(r *http.Request, _ []byte) (any, error) {
	after, err := number(r, "after", 0)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	err = poll(r, func() (bool, <-chan struct{}) {
		var next <-chan struct{}
		entries, next = c.v.journal.after(after)
		return len(entries) > 0, next
	})
	return map[string]any{"entries": entries}, err
}

// onHost runs f on the host of the path, with the mutex held.
func (c *Control) onHost(r *http.Request, f func(h *host) (any, error)) (any, error) {
	c.v.mu.Lock()
	defer c.v.mu.Unlock()
	h, err := c.v.findHost(r.PathValue("host"))
	if err != nil {
		return nil, err
	}
	return f(h)
}

func (c *Control) onVM(r *http.Request, f func(g *guest) (any, error)) (any, error) {
	c.v.mu.Lock()
	defer c.v.mu.Unlock()
	g, err := c.v.findVM(r.PathValue("vm"))
	if err != nil {
		return nil, err
	}
	return f(g)
}

// clicked records an operator's action as the call that their client would
// send.
func (c *Control) clicked(who caller, method, object string, r ref) {
	c.v.journal.add(Entry{Kind: "call", User: who.User, Method: method, Object: object, Ref: r.Value})
}

func taskAnswer(r ref) (any, error) { return map[string]string{"task": r.Value}, nil }

func (c *Control) enter(r *http.Request, body []byte) (any, error) {
	var args struct {
		TimeoutMs             int  `json:"timeoutMs"`
		EvacuatePoweredOffVMs bool `json:"evacuatePoweredOffVms"`
	}
	if err := decode(body, &args); err != nil {
		return nil, err
	}
	return c.onHost(r, func(h *host) (any, error) {
		c.clicked(who(r), "EnterMaintenanceMode_Task", h.Name, h.Self)
		t := c.v.enter(h, time.Duration(args.TimeoutMs)*time.Millisecond, args.EvacuatePoweredOffVMs, who(r))
		return map[string]any{"task": t.Self.Value, "acceptedNs": t.Info.QueueTime.UnixNano()}, nil
	})
}

func (c *Control) exit(r *http.Request, _ []byte) (any, error) {
	return c.onHost(r, func(h *host) (any, error) {
		c.clicked(who(r), "ExitMaintenanceMode_Task", h.Name, h.Self)
		return taskAnswer(c.v.exit(h, who(r)).Self)
	})
}

func (c *Control) cancel(r *http.Request, _ []byte) (any, error) {
	return c.onHost(r, func(h *host) (any, error) {
		e := c.v.entering[h.Self]
		if e == nil {
			return nil, fmt.Errorf("host %q is not entering maintenance mode", h.Name)
		}
		c.clicked(who(r), "CancelTask", h.Name, e.task.Self)
		c.v.cancelTask(e.task, who(r))
		return taskAnswer(e.task.Self)
	})
}

// fail ends a running Enter Maintenance Mode with a fault, as a vCenter does.
func (c *Control) fail(r *http.Request, body []byte) (any, error) {
	var args struct {
		Fault string `json:"fault"`
	}
	if err := decode(body, &args); err != nil {
		return nil, err
	}
	fault, err := makeFault(args.Fault)
	if err != nil {
		return nil, mistake{err}
	}
	return c.onHost(r, func(h *host) (any, error) {
		e := c.v.entering[h.Self]
		if e == nil {
			return nil, fmt.Errorf("host %q is not entering maintenance mode", h.Name)
		}
		c.v.endEntering(e, fault, caller{User: "vpxd"})
		c.v.settle()
		return taskAnswer(e.task.Self)
	})
}

func (c *Control) hostTask(r *http.Request, body []byte) (any, error) {
	task, err := decodeForeign(body)
	if err != nil {
		return nil, err
	}
	return c.onHost(r, func(h *host) (any, error) {
		return taskAnswer(c.v.runForeign(task, h.HostSystem, who(r)).Self)
	})
}

func (c *Control) vmTask(r *http.Request, body []byte) (any, error) {
	task, err := decodeForeign(body)
	if err != nil {
		return nil, err
	}
	return c.onVM(r, func(g *guest) (any, error) {
		return taskAnswer(c.v.runForeign(task, g.VirtualMachine, who(r)).Self)
	})
}

func decodeForeign(body []byte) (foreignTask, error) {
	var task foreignTask
	if err := decode(body, &task); err != nil {
		return task, err
	}
	if task.DurationMs < 0 {
		return task, badRequest("durationMs %d: must not be negative", task.DurationMs)
	}
	return task, task.check()
}

func (c *Control) addHost(r *http.Request, body []byte) (any, error) {
	var args struct {
		Cluster string `json:"cluster"`
		HostSpec
	}
	if err := decode(body, &args); err != nil {
		return nil, err
	}
	c.v.mu.Lock()
	defer c.v.mu.Unlock()
	cluster := c.v.findCluster(args.Cluster)
	if cluster == nil {
		return nil, fmt.Errorf("cluster %q: %w", args.Cluster, errUnknown)
	}
	h, err := c.v.addHost(cluster, args.HostSpec)
	if err != nil {
		return nil, err
	}
	c.v.journal.add(Entry{Kind: "host", User: who(r).User, Object: h.Name, Ref: h.Self.Value, Detail: "added"})
	c.v.settle()
	return map[string]string{"ref": h.Self.Value}, nil
}

func (c *Control) removeHost(r *http.Request, _ []byte) (any, error) {
	return c.onHost(r, func(h *host) (any, error) {
		c.v.removeHost(h, who(r))
		c.v.settle()
		return nil, nil
	})
}

func (c *Control) rename(r *http.Request, body []byte) (any, error) {
	var args struct {
		Name string `json:"name"`
	}
	if err := decode(body, &args); err != nil {
		return nil, err
	}
	return c.onHost(r, func(h *host) (any, error) {
		if args.Name == "" {
			return nil, badRequest("name: must not be empty")
		}
		c.v.journal.add(Entry{Kind: "host", User: who(r).User, Object: h.Name, Ref: h.Self.Value, Detail: "renamed to " + args.Name})
		c.v.set(h.HostSystem, "name", args.Name, "summary.config.name", args.Name)
		c.v.settle()
		return nil, nil
	})
}

func (c *Control) partial(r *http.Request, body []byte) (any, error) {
	var args struct {
		Mode   string                                 `json:"mode"`
		Status types.HostPartialMaintenanceModeStatus `json:"status"`
	}
	if err := decode(body, &args); err != nil {
		return nil, err
	}
	if !slices.Contains(args.Status.Values(), args.Status) {
		return nil, badRequest("status %q: want one of %v", args.Status, args.Status.Values())
	}
	return c.onHost(r, func(h *host) (any, error) {
		c.v.set(h.HostSystem, "runtime.partialMaintenanceMode", []types.HostPartialMaintenanceModeRuntimeInfo{
			{Key: args.Mode, HostStatus: string(args.Status)},
		})
		c.v.bump()
		return nil, nil
	})
}

func (c *Control) connection(r *http.Request, body []byte) (any, error) {
	var args struct {
		State types.HostSystemConnectionState `json:"state"`
		// InMaintenance is what the host reports when it is connected again.
		InMaintenance *bool `json:"inMaintenance"`
	}
	if err := decode(body, &args); err != nil {
		return nil, err
	}
	switch args.State {
	case types.HostSystemConnectionStateConnected, types.HostSystemConnectionStateDisconnected, types.HostSystemConnectionStateNotResponding:
	default:
		return nil, badRequest("state %q: want connected, disconnected or notResponding", args.State)
	}
	return c.onHost(r, func(h *host) (any, error) {
		if args.InMaintenance != nil {
			c.v.setMaintenance(h, *args.InMaintenance)
		}
		c.v.setConnection(h, args.State, who(r))
		return nil, nil
	})
}

func (c *Control) addDevice(r *http.Request, body []byte) (any, error) {
	var d DeviceSpec
	if err := decode(body, &d); err != nil {
		return nil, err
	}
	return c.onHost(r, func(h *host) (any, error) {
		if slices.ContainsFunc(h.devices, func(o DeviceSpec) bool { return o.ID == d.ID }) {
			return nil, fmt.Errorf("host %q has a device at %s", h.Name, d.ID)
		}
		c.v.setDevices(h, append(slices.Clone(h.devices), d), false)
		c.v.settle()
		return nil, nil
	})
}

func (c *Control) removeDevice(r *http.Request, _ []byte) (any, error) {
	return c.onHost(r, func(h *host) (any, error) {
		id := r.PathValue("id")
		rest := slices.DeleteFunc(slices.Clone(h.devices), func(o DeviceSpec) bool { return o.ID == id })
		if len(rest) == len(h.devices) {
			return nil, fmt.Errorf("device %q of host %q: %w", id, h.Name, errUnknown)
		}
		c.v.setDevices(h, rest, false)
		c.v.settle()
		return nil, nil
	})
}

func (c *Control) addVM(r *http.Request, body []byte) (any, error) {
	var spec VMSpec
	if err := decode(body, &spec); err != nil {
		return nil, err
	}
	c.v.mu.Lock()
	defer c.v.mu.Unlock()
	g, err := c.v.addVM(spec, who(r))
	if err != nil {
		return nil, err
	}
	c.v.settle()
	return map[string]string{"ref": g.Self.Value, "uuid": g.Config.Uuid}, nil
}

func (c *Control) removeVM(r *http.Request, _ []byte) (any, error) {
	return c.onVM(r, func(g *guest) (any, error) {
		c.clicked(who(r), "UnregisterVM", g.Name, g.Self)
		c.v.removeVM(g)
		c.v.settle()
		return nil, nil
	})
}

func (c *Control) patchVM(r *http.Request, body []byte) (any, error) {
	var args struct {
		Tools          *bool    `json:"tools"`
		IgnoreShutdown *bool    `json:"ignoreShutdown"`
		ShutdownMs     *int     `json:"shutdownMs"`
		Reboots        *bool    `json:"reboots"`
		ToolsStopMs    *int     `json:"toolsStopMs"`
		DiesAfterMs    *int     `json:"diesAfterMs"`
		OwnGuest       *bool    `json:"ownGuest"`
		Readable       Readable `json:"readable"`
	}
	if err := decode(body, &args); err != nil {
		return nil, err
	}
	if err := args.Readable.check(); err != nil {
		return nil, err
	}
	return c.onVM(r, func(g *guest) (any, error) {
		if args.IgnoreShutdown != nil {
			g.spec.IgnoreShutdown = *args.IgnoreShutdown
		}
		if args.ShutdownMs != nil {
			g.spec.ShutdownMs = *args.ShutdownMs
		}
		if args.Reboots != nil {
			g.spec.Reboots = *args.Reboots
		}
		if args.ToolsStopMs != nil {
			g.spec.ToolsStopMs = *args.ToolsStopMs
		}
		if args.DiesAfterMs != nil {
			g.spec.DiesAfterMs = *args.DiesAfterMs
		}
		if args.OwnGuest != nil {
			g.spec.OwnGuest = *args.OwnGuest
		}
		if args.Readable != "" {
			c.v.setReadable(g, args.Readable)
		}
		if args.Tools != nil {
			g.spec.Tools = args.Tools
			status := string(types.VirtualMachineToolsRunningStatusGuestToolsNotRunning)
			if c.v.on(g) {
				status = toolsWhenOn(g)
			}
			c.v.set(g.VirtualMachine, "guest.toolsRunningStatus", status)
		}
		c.v.settle()
		return nil, nil
	})
}

// powerOn starts a VM in place, or as PowerOnVM_Task does: where DRS places it.
func (c *Control) powerOn(r *http.Request, body []byte) (any, error) {
	return c.power(func(g *guest, who caller) ref {
		level := types.DrsBehavior("")
		if r.URL.Query().Get("drs") == "true" {
			level = c.v.behavior(g)
		}
		return c.v.powerOn(g, nil, level, who)
	}, "PowerOnVM_Task")(r, body)
}

func (c *Control) power(f func(*guest, caller) ref, method string) action {
	return func(r *http.Request, _ []byte) (any, error) {
		return c.onVM(r, func(g *guest) (any, error) {
			c.clicked(who(r), method, g.Name, g.Self)
			return taskAnswer(f(g, who(r)))
		})
	}
}

func (c *Control) shutdown(r *http.Request, _ []byte) (any, error) {
	return c.onVM(r, func(g *guest) (any, error) {
		c.clicked(who(r), "ShutdownGuest", g.Name, g.Self)
		if fault := c.v.shutdownGuest(g, who(r)); fault != nil {
			return nil, errors.New(message(fault))
		}
		return nil, nil
	})
}

// ended is what the runner of a guest tells when it has ended by itself.
func (c *Control) ended(r *http.Request, body []byte) (any, error) {
	var args struct {
		Boots int `json:"boots"`
	}
	if err := decode(body, &args); err != nil {
		return nil, err
	}
	return c.onVM(r, func(g *guest) (any, error) {
		// It may be off by now, or started again.
		if c.v.on(g) && g.boots == args.Boots {
			c.v.guestEnded(g)
		}
		return nil, nil
	})
}

// move puts a VM on another host in any power state and without the checks of a
// vCenter. It refuses only a device that the target does not have.
func (c *Control) move(r *http.Request, body []byte) (any, error) {
	var args struct {
		Host string `json:"host"`
	}
	if err := decode(body, &args); err != nil {
		return nil, err
	}
	return c.onVM(r, func(g *guest) (any, error) {
		if args.Host == "" && c.v.on(g) {
			return nil, badRequest("host: only a VM that is off is on no host")
		}
		if args.Host == "" {
			c.v.unassign(g, who(r))
			return nil, nil
		}
		target, err := c.v.findHost(args.Host)
		if err != nil {
			return nil, err
		}
		source := c.v.hostOf(g)
		if c.v.on(g) && source != target {
			device, fault := c.v.claim(g, target)
			if fault != nil {
				return nil, errors.New(message(fault))
			}
			c.v.release(g, source)
			c.v.moveTo(g, target, nil, nil, who(r))
			g.device = device
			c.v.bind(g, target)
		} else {
			c.v.moveTo(g, target, nil, nil, who(r))
		}
		c.v.settle()
		return nil, nil
	})
}

func (c *Control) addFault(_ *http.Request, body []byte) (any, error) {
	var rule Rule
	if err := decode(body, &rule); err != nil {
		return nil, err
	}
	rule, err := c.v.faults.add(rule)
	if err != nil {
		return nil, mistake{err}
	}
	return rule, nil
}

func (c *Control) faults(*http.Request, []byte) (any, error) {
	return map[string]any{"faults": c.v.faults.list()}, nil
}

func (c *Control) clearFaults(*http.Request, []byte) (any, error) {
	c.v.faults.clear()
	return nil, nil
}

func (c *Control) removeFault(r *http.Request, _ []byte) (any, error) {
	id, err := strconv.Atoi(r.PathValue("id"))
	if err != nil {
		return nil, badRequest("fault %q: not a number", r.PathValue("id"))
	}
	if !c.v.faults.remove(id) {
		return nil, fmt.Errorf("fault %d: %w", id, errUnknown)
	}
	return nil, nil
}

func (c *Control) addAttribute(_ *http.Request, body []byte) (any, error) {
	var args attributeSpec
	if err := decode(body, &args); err != nil {
		return nil, err
	}
	c.v.mu.Lock()
	defer c.v.mu.Unlock()
	return nil, c.v.defineAttribute(args)
}

func (c *Control) kill(_ *http.Request, body []byte) (any, error) {
	var args struct {
		Silent bool `json:"silent"`
	}
	if err := decode(body, &args); err != nil {
		return nil, err
	}
	return map[string]int{"killed": c.v.sessions.kill(args.Silent, "killed")}, nil
}

func (c *Control) restart(_ *http.Request, body []byte) (any, error) {
	var args struct {
		DownMs         int  `json:"downMs"`
		With503        bool `json:"with503"`
		RefuseLoginsMs int  `json:"refuseLoginsMs"`
		LoseTasks      bool `json:"loseTasks"`
	}
	if err := decode(body, &args); err != nil {
		return nil, err
	}
	return nil, c.server.restart(Outage{
		down:         time.Duration(args.DownMs) * time.Millisecond,
		with503:      args.With503,
		loseTasks:    args.LoseTasks,
		refuseLogins: time.Duration(args.RefuseLoginsMs) * time.Millisecond,
	})
}

func (c *Control) changeRate(_ *http.Request, body []byte) (any, error) {
	var args struct {
		PerSecond int `json:"perSecond"`
	}
	if err := decode(body, &args); err != nil {
		return nil, err
	}
	if args.PerSecond < 0 {
		return nil, badRequest("perSecond %d: must not be negative", args.PerSecond)
	}
	if args.PerSecond > 0 && len(c.v.bulk.hosts) == 0 {
		return nil, errors.New("the inventory has no bulk hosts to change")
	}
	c.v.setChangeRate(args.PerSecond)
	return nil, nil
}

func (c *Control) traffic(r *http.Request, _ []byte) (any, error) {
	until, err := number(r, "until", time.Now().UnixNano())
	if err != nil {
		return nil, err
	}
	return c.v.traffic.all(time.Unix(0, until)), nil
}

func (c *Control) settings(_ *http.Request, body []byte) (any, error) {
	var args struct {
		PushRecentTask *bool       `json:"pushRecentTask"`
		PushTaskEnd    *bool       `json:"pushTaskEnd"`
		DRSKeepsHost   *bool       `json:"drsKeepsHost"`
		Delays         *Delays     `json:"delays"`
		Withheld       *[]Withheld `json:"withheld"`
		WithholdTasks  *bool       `json:"withholdTasks"`
	}
	if err := decode(body, &args); err != nil {
		return nil, err
	}
	if args.PushRecentTask != nil {
		c.v.suppression.set(!*args.PushRecentTask)
	}
	if args.PushTaskEnd != nil {
		c.v.suppression.setEnds(*args.PushTaskEnd)
	}
	if args.DRSKeepsHost != nil {
		c.v.mu.Lock()
		c.v.spec.DRSKeepsHost = args.DRSKeepsHost
		c.v.mu.Unlock()
	}
	if args.Delays != nil {
		c.v.mu.Lock()
		c.v.spec.Delays = *args.Delays
		c.v.mu.Unlock()
	}
	if args.WithholdTasks != nil {
		c.v.visibility.withholdTasks(*args.WithholdTasks)
	}
	if args.Withheld != nil {
		c.v.mu.Lock()
		c.v.withheld = *args.Withheld
		c.v.mu.Unlock()
	}
	return nil, nil
}
