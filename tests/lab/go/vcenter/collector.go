package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"
)

// pageSize is how many object updates a vCenter puts into one set at the most.
const pageSize = 100

// collectors is the property collector of our own, in place of the simulator's
// where wanted. The simulator's reads all objects of all filters anew on each
// change, which at 2,500 hosts takes hundreds of milliseconds. This one keeps
// what each filter has told, reads again at what has changed and at nothing
// else, and holds the rules of a vCenter's versions: a wrong one is refused, and
// an answer that was lost on its way can be asked for again.
//
// The simulator tells it of each change through its registry's handlers, which
// run with the changed object's lock held. So nothing is read there: objects are
// marked, and whoever waits reads them.
type collectors struct {
	v      *VCenter
	values *values

	mu        sync.Mutex
	open      map[*simulator.PropertyCollector]*collector
	tasks     []*simulator.Task
	histories map[*TaskHistoryCollector]bool
}

func newCollectors(v *VCenter) *collectors {
	return &collectors{
		v: v, values: newValues(v.visibility),
		open:      map[*simulator.PropertyCollector]*collector{},
		histories: map[*TaskHistoryCollector]bool{},
	}
}

// Reference is the name under which the registry keeps its handler.
func (cs *collectors) Reference() ref {
	return ref{Type: "PropertyCollector", Value: "haulout-lab-collectors"}
}

// PutObject is told of each object that comes into the inventory.
func (cs *collectors) PutObject(_ *simulator.Context, obj mo.Reference) {
	cs.values.changed(obj.Reference(), nil)
	cs.mark(obj.Reference(), nil, false)
	if task, ok := obj.(*simulator.Task); ok {
		cs.record(task)
	}
}

// UpdateObject is told of each change.
func (cs *collectors) UpdateObject(_ *simulator.Context, obj mo.Reference, changes []vim.PropertyChange) {
	suppress := cs.v.suppression.isOn()
	var names []string
	for _, change := range changes {
		names = append(names, change.Name)
	}
	cs.values.changed(obj.Reference(), names)
	if suppress {
		names = slices.DeleteFunc(names, func(name string) bool { return name == "recentTask" })
	}
	if len(names) > 0 {
		cs.mark(obj.Reference(), names, false)
	}
	if obj.Reference().Type == "Task" && slices.Contains(names, "info.state") {
		cs.retell(obj.Reference())
	}
}

// RemoveObject is told of each object that leaves, before the registry forgets it.
func (cs *collectors) RemoveObject(_ *simulator.Context, obj ref) {
	cs.values.gone(obj)
	cs.mark(obj, nil, true)
}

func (cs *collectors) mark(obj ref, names []string, gone bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.open {
		c.mark(obj, names, gone)
	}
}

// of gives the collector that stands behind one of the simulator's.
func (cs *collectors) of(pc *simulator.PropertyCollector) *collector {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.open[pc]
	if c == nil {
		c = &collector{
			values:  cs.values,
			watched: map[ref]map[*paths]int{},
			stale:   map[ref]*stale{},
			wake:    make(chan struct{}, 1),
		}
		cs.open[pc] = c
	}
	return c
}

// cancel ends the call that waits, if one does.
func (cs *collectors) cancel(pc *simulator.PropertyCollector) {
	cs.mu.Lock()
	c := cs.open[pc]
	cs.mu.Unlock()
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.cancel != nil {
			close(c.cancel)
			c.cancel = nil
		}
	}
}

// drop forgets a collector. A call that waits hears of nothing any more; unless
// silent, it ends.
func (cs *collectors) drop(pc *simulator.PropertyCollector, silent bool) {
	if !silent {
		cs.cancel(pc)
	}
	cs.mu.Lock()
	delete(cs.open, pc)
	cs.mu.Unlock()
}

// paths are the properties that somebody reads at; the pointer tells one
// looker's from another's.
type paths struct{ list []string }

func (p *paths) covers(names []string) bool {
	for _, path := range p.list {
		for _, name := range names {
			if covers(path, name) {
				return true
			}
		}
	}
	return false
}

// stale is what is known to have changed of an object since the last look.
type stale struct {
	// all is true for an object that has come or gone.
	all   bool
	gone  bool
	names []string
}

func (s *stale) covers(path string) bool {
	return s.all || slices.ContainsFunc(s.names, func(name string) bool { return covers(path, name) })
}

// collector is one property collector.
type collector struct {
	values *values

	// calls lets one call in at a time, as a vCenter does.
	calls sync.Mutex
	// number is the last version given out. base is the version that the pages
	// of the last answer lead on from, and sent the page that went out last.
	number int
	base   string
	pages  []page
	sent   int

	// mu is a leaf: it is taken with objects' locks held.
	mu      sync.Mutex
	filters []*filter
	watched map[ref]map[*paths]int
	stale   map[ref]*stale
	wake    chan struct{}
	cancel  chan struct{}
}

// page is an answer as it was sent, so that it can be sent again.
type page struct{ version, xml string }

func (c *collector) mark(obj ref, names []string, gone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	relevant := false
	for p := range c.watched[obj] {
		relevant = relevant || names == nil || p.covers(names)
	}
	if !relevant {
		return
	}
	s := c.stale[obj]
	if s == nil {
		s = &stale{}
		c.stale[obj] = s
	}
	s.all = s.all || names == nil
	s.gone = s.gone || gone
	for _, name := range names {
		if !slices.Contains(s.names, name) {
			s.names = append(s.names, name)
		}
	}
	c.rouse()
}

func (c *collector) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// watch is called before what is watched is read: what changes in between is
// then looked at once more, and not missed.
func (c *collector) watch(obj ref, p *paths) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched[obj] == nil {
		c.watched[obj] = map[*paths]int{}
	}
	c.watched[obj][p]++
}

func (c *collector) unwatch(obj ref, p *paths) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched[obj][p]--; c.watched[obj][p] == 0 {
		delete(c.watched[obj], p)
	}
	if len(c.watched[obj]) == 0 {
		delete(c.watched, obj)
	}
}

func (c *collector) take() (map[ref]*stale, []*filter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.stale
	c.stale = map[ref]*stale{}
	return taken, slices.Clone(c.filters)
}

// CreateFilter implements the SOAP method.
func (v *VCenter) CreateFilter(ctx *simulator.Context, req *vim.CreateFilter) soap.HasFault {
	pc, ok := ctx.Session.Get(req.This).(*simulator.PropertyCollector)
	if !ok {
		return &methods.CreateFilterBody{Fault_: soapFault(&vim.ManagedObjectNotFound{Obj: req.This})}
	}
	c := v.collectors.of(pc)
	f, fault := newFilter(c, req.Spec)
	if fault != nil {
		return &methods.CreateFilterBody{Fault_: soapFault(fault)}
	}
	body := pc.CreateFilter(ctx, req)
	f.self = body.(*methods.CreateFilterBody).Res.Returnval
	c.mu.Lock()
	defer c.mu.Unlock()
	c.filters = append(c.filters, f)
	c.rouse()
	return body
}

// DestroyPropertyFilter implements the SOAP method.
func (v *VCenter) DestroyPropertyFilter(ctx *simulator.Context, req *vim.DestroyPropertyFilter) soap.HasFault {
	pf, ok := ctx.Session.Get(req.This).(*simulator.PropertyFilter)
	if !ok {
		return &methods.DestroyPropertyFilterBody{Fault_: soapFault(&vim.ManagedObjectNotFound{Obj: req.This})}
	}
	v.collectors.mu.Lock()
	for _, c := range v.collectors.open {
		c.mu.Lock()
		c.filters = slices.DeleteFunc(c.filters, func(f *filter) bool { return f.self == req.This })
		c.mu.Unlock()
	}
	v.collectors.mu.Unlock()
	return pf.DestroyPropertyFilter(ctx, req)
}

// rawUpdates is an answer that is XML already.
type rawUpdates struct {
	Res    *rawResponse `xml:"WaitForUpdatesExResponse"`
	Fault_ *soap.Fault  `xml:"-"`
}

// Fault implements soap.HasFault.
func (b *rawUpdates) Fault() *soap.Fault { return b.Fault_ }

type rawResponse struct {
	XML string `xml:",innerxml"`
}

func nothing() soap.HasFault { return &rawUpdates{Res: &rawResponse{}} }

func (p page) answer() soap.HasFault { return &rawUpdates{Res: &rawResponse{XML: p.xml}} }

// wait answers WaitForUpdatesEx.
func (c *collector) wait(ctx *simulator.Context, req *vim.WaitForUpdatesEx) soap.HasFault {
	c.calls.Lock()
	defer c.calls.Unlock()
	if again, fault := c.lead(req.Version); fault != nil {
		return &rawUpdates{Fault_: soapFault(fault)}
	} else if again != nil {
		return again.answer()
	}
	size, once, end := pageSize, false, (<-chan time.Time)(nil)
	if o := req.Options; o != nil {
		if o.MaxObjectUpdates > 0 {
			size = min(size, int(o.MaxObjectUpdates))
		}
		if o.MaxWaitSeconds != nil {
			once = *o.MaxWaitSeconds == 0
			timer := time.NewTimer(time.Duration(*o.MaxWaitSeconds) * time.Second)
			defer timer.Stop()
			end = timer.C
		}
	}
	cancel := make(chan struct{})
	c.mu.Lock()
	c.cancel = cancel
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		if c.cancel == cancel {
			c.cancel = nil
		}
		c.mu.Unlock()
	}()
	for {
		stale, filters := c.take()
		var news []told
		for _, f := range filters {
			updates, fault := f.look(ctx, stale)
			if fault != nil {
				return &rawUpdates{Fault_: soapFault(fault)}
			}
			news = append(news, updates...)
		}
		if len(news) > 0 || req.Version == "" {
			c.base, c.pages, c.sent = req.Version, c.write(news, size), 0
			return c.pages[0].answer()
		}
		if once {
			return nothing()
		}
		select {
		case <-c.wake:
		case <-end:
			return nothing()
		case <-cancel:
			return &rawUpdates{Fault_: soapFault(&vim.RequestCanceled{})}
		}
	}
}

// lead says what a version asks for: a page that is there already, a fault, or
// neither, which is news. A version that was truncated leads on once and at
// once; one that was complete may be asked from again.
func (c *collector) lead(version string) (*page, vim.BaseMethodFault) {
	last := len(c.pages) - 1
	switch {
	case version == "":
		c.mu.Lock()
		for _, f := range c.filters {
			f.forget()
		}
		clear(c.watched)
		clear(c.stale)
		c.mu.Unlock()
		c.base, c.pages, c.sent = "", nil, 0
		return nil, nil
	case last >= 0 && version == c.base:
		c.sent = 0
		return &c.pages[0], nil
	case last >= 0 && c.sent < last && version == c.pages[c.sent].version:
		c.sent++
		return &c.pages[c.sent], nil
	case last >= 0 && c.sent == last && version == c.pages[last].version:
		c.base, c.pages = version, nil
		return nil, nil
	case last < 0 && version == c.base:
		return nil, nil
	}
	return nil, &vim.InvalidCollectorVersion{}
}

// told is one object's update.
type told struct {
	filter ref
	xml    string
}

// write makes the pages of an answer.
func (c *collector) write(news []told, size int) []page {
	var pages []page
	for {
		n := min(size, len(news))
		c.number++
		version := strconv.Itoa(c.number)
		var b strings.Builder
		fmt.Fprintf(&b, "<returnval><version>%s</version>", version)
		for i, update := range news[:n] {
			if i == 0 || news[i-1].filter != update.filter {
				fmt.Fprintf(&b, `<filterSet><filter type="PropertyFilter">%s</filter>`, escaped(update.filter.Value))
			}
			b.WriteString(update.xml)
			if i == n-1 || news[i+1].filter != update.filter {
				b.WriteString("</filterSet>")
			}
		}
		if news = news[n:]; len(news) > 0 {
			b.WriteString("<truncated>true</truncated>")
		}
		b.WriteString("</returnval>")
		pages = append(pages, page{version, b.String()})
		if len(news) == 0 {
			return pages
		}
	}
}
