package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/operator/overridepb"
	"github.com/ratelimitd/ratelimitd/internal/operator/serviceclient"
	"github.com/ratelimitd/ratelimitd/internal/platform/stdin"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// overridesFile is a file of overrides. A large one is not in memory as a whole.
type overridesFile struct {
	name  string
	whole []override.Placed // the overrides of a file with up to override.MaxFileSize
	large *os.File          // a file of lines larger than override.MaxFileSize; nil for a smaller file
	from  int64             // offset in large of the first override
}

// openOverridesFile reads a file up to override.MaxFileSize. It is YAML, or has one override on each line. A larger
// file must have such lines, like the copy of the overrides in Redis.
func openOverridesFile(name string) (*overridesFile, error) {
	f := &overridesFile{name: stdin.NameOf(name)}
	from := os.Stdin
	if name != stdin.Name {
		var err error
		if from, err = os.Open(name); err != nil {
			return nil, fmt.Errorf("read overrides: %w", err)
		}
	}
	at, err := from.Seek(0, io.SeekCurrent)
	if info, statErr := from.Stat(); err == nil && statErr == nil && info.Size()-at > override.MaxFileSize {
		f.large, f.from = from, at
		return f, nil
	}
	data, err := io.ReadAll(io.LimitReader(from, override.MaxFileSize+1))
	if from != os.Stdin {
		err = errors.Join(err, from.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("read overrides: %w", err)
	}
	if len(data) > override.MaxFileSize {
		return nil, fmt.Errorf("%s has more than %d MiB and can be read only once: save it in a file first", f.name,
			override.MaxFileSize>>20)
	}
	f.whole, err = parseOverrides(f.name, data)
	return f, err
}

func (f *overridesFile) close() error {
	if f.large == nil || f.large == os.Stdin {
		return nil
	}
	return f.large.Close()
}

// all yields the overrides of the file. It may be called again.
func (f *overridesFile) all() iter.Seq2[override.Placed, error] {
	return func(yield func(override.Placed, error) bool) {
		for i := range f.whole {
			if !yield(f.whole[i], nil) {
				return
			}
		}
		if f.large == nil {
			return
		}
		if _, err := f.large.Seek(f.from, io.SeekStart); err != nil {
			yield(override.Placed{}, fmt.Errorf("read overrides: %w", err))
			return
		}
		override.Lines(f.name, f.large)(yield)
	}
}

// expired reports whether an override ended before now.
func expired(o *override.Numbers, now time.Time) bool {
	return o.ExpiresAt != 0 && o.ExpiresAt <= now.Unix()
}

// load writes the overrides of a file, with as few calls as possible. First it checks all of them.
func (o *overrideCommand) load(ctx context.Context, s streams) error {
	if len(o.Arguments) != 1 {
		return misuse(errors.New("write one file: ratelimitd override import FILE, or - for the standard input"))
	}
	file, err := openOverridesFile(o.Arguments[0])
	if err != nil {
		return misuse(err)
	}
	defer file.close() //nolint:errcheck // it was only read
	now := time.Now()
	i := importing{overrideCommand: o, streams: s, asText: o.Output.Output == "table" && !o.Output.JSON}
	over := 0
	for one, err := range file.all() {
		switch {
		case err != nil:
			return misuse(err)
		case expired(&one.Numbers, now):
			over++
		default:
			i.total++
		}
	}
	if over > 0 {
		fmt.Fprintf(s.err, "ratelimitd: %d overrides of the file have expired and are left out\n", over)
	}
	if i.client, err = o.Port.client(s.err); err != nil {
		return err
	}
	defer i.client.Close()
	for one, err := range file.all() {
		if err != nil {
			return err
		}
		if expired(&one.Numbers, now) {
			continue
		}
		if o.Reason != "" {
			one.Reason = o.Reason
		}
		if err := i.add(ctx, &one.Override); err != nil {
			return err
		}
	}
	if err := i.send(ctx); err != nil {
		return err
	}
	if i.asText {
		if !o.DryRun {
			_, err = fmt.Fprintf(s.out, "%d overrides written\n", i.done)
		}
		return err
	}
	return o.show(s, i.changes)
}

// importing writes overrides in as few calls as possible.
type importing struct {
	*overrideCommand
	streams
	client      *serviceclient.Client
	asText      bool
	total, done int // overrides

	batch   []*adminv1.OverrideWrite
	size    int                       // size of batch in a request, in bytes
	changes []*adminv1.OverrideChange // all changes, unless the output is text
}

func (i *importing) add(ctx context.Context, one *override.Override) error {
	const mostBytes = 200 << 10 // the server reads 256 KiB
	write := &adminv1.OverrideWrite{Override: overridepb.Message(one), ExpectVersion: i.Expect}
	size := proto.Size(write) + 8
	if i.size+size > mostBytes || len(i.batch) == override.MaxEdits {
		if err := i.send(ctx); err != nil {
			return err
		}
	}
	i.batch, i.size = append(i.batch, write), i.size+size
	return nil
}

// send writes the batch.
func (i *importing) send(ctx context.Context) error {
	const progress = 100_000 // overrides
	if len(i.batch) == 0 {
		return nil
	}
	changes, err := i.client.SetOverrides(ctx, &adminv1.OverrideServiceSetRequest{Writes: i.batch, DryRun: i.DryRun})
	if err != nil {
		if i.total > len(i.batch) {
			err = fmt.Errorf("%w; this is about the overrides %d to %d of %d", err, i.done+1, i.done+len(i.batch), i.total)
		}
		if i.done > 0 && !i.DryRun {
			err = fmt.Errorf("%w; the first %d overrides were written before", err, i.done)
		}
		return err
	}
	before := i.done
	i.done, i.batch, i.size = i.done+len(i.batch), i.batch[:0], 0
	switch {
	case !i.asText:
		i.changes = append(i.changes, changes...)
	case i.DryRun:
		return serviceclient.WriteOverrideChanges(i.out, changes, i.Output.Color.on(i.out))
	case before/progress < i.done/progress && i.done < i.total:
		fmt.Fprintf(i.err, "ratelimitd: %d of %d overrides written\n", i.done, i.total)
	}
	return nil
}
