package server

import (
	_ "embed"
	"fmt"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/runtime/protoimpl"
	_ "google.golang.org/protobuf/types/known/durationpb" // which the description of reservations refers to
	_ "google.golang.org/protobuf/types/known/timestamppb"
)

// reservationFiles is the compiled proto/ratelimitd/v1/reservations.proto, the only file of a google.protobuf.FileDescriptorSet. make
// generate writes it. The generated Go code would make the program larger, and its messages are not used here.
//
//go:embed reservations.binpb
var reservationFiles []byte

// describeReservations adds the service to what reflection knows.
var describeReservations = sync.OnceFunc(func() {
	_, _, tag := protowire.ConsumeTag(reservationFiles)
	file, _ := protowire.ConsumeBytes(reservationFiles[tag:])
	describeFile(reservationFile, file)
})

// describeFile adds a file to what reflection knows, unless the program contains its generated code, as tests do.
func describeFile(path string, file []byte) {
	if _, err := protoregistry.GlobalFiles.FindFileByPath(path); err == nil {
		return
	}
	made := protoimpl.DescBuilder{GoPackagePath: "github.com/ratelimitd/ratelimitd/internal/server", RawDescriptor: file}.Build()
	if made.File.Path() != path || made.File.Services().Len() != 1 {
		panic(fmt.Sprintf("the description of %s is one of %s", path, made.File.Path()))
	}
}
