package server

import (
	_ "embed"
	"fmt"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/runtime/protoimpl"
	_ "google.golang.org/protobuf/types/known/durationpb" // a dependency of the description of reservations
	_ "google.golang.org/protobuf/types/known/timestamppb"
)

// ownFiles are the compiled files of proto/ratelimitd/v1, as a google.protobuf.FileDescriptorSet. make generate writes
// it. The generated Go code would enlarge the program, and its messages are not used here.
//
//go:embed clients.binpb
var ownFiles []byte

// describeOwn adds these services to reflection.
var describeOwn = sync.OnceFunc(func() {
	rest := ownFiles
	for _, path := range []string{reservationFile, decisionFile} { // a file comes after the files that it imports
		_, _, tag := protowire.ConsumeTag(rest)
		file, size := protowire.ConsumeBytes(rest[tag:])
		describeFile(path, file)
		rest = rest[tag+size:]
	}
	if len(rest) > 0 {
		panic("clients.binpb has a file that reflection does not know")
	}
})

// describeFile adds a file to reflection, unless the program contains its generated code, as tests do.
func describeFile(path string, file []byte) {
	if _, err := protoregistry.GlobalFiles.FindFileByPath(path); err == nil {
		return
	}
	made := protoimpl.DescBuilder{GoPackagePath: "github.com/ratelimitd/ratelimitd/internal/server",
		RawDescriptor: file}.Build()
	if made.File.Path() != path {
		panic(fmt.Sprintf("the description of %s is one of %s", path, made.File.Path()))
	}
}
