// Shared by the libraries beside the driver's.

#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstring>

namespace {

float widen(uint16_t number) {
    uint32_t bits = static_cast<uint32_t>(number) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

uint16_t narrow(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    if (number != number) return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// A function of the driver's library, which does what only it can.
template <typename Function>
Function* of_driver(const char* name) {
    void* driver = dlopen("libcuda.so", RTLD_NOW | RTLD_NOLOAD);
    return driver == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(driver, name));
}

}  // namespace
