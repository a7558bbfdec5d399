/*
 * The least that reading a tree can cost: open, read and close 12 attributes of every PCI function, relative to the
 * function's folder, and nothing done with them. Prints the CPU time of one pass in milliseconds.
 *
 * usage: floor TREE/sys/bus/pci/devices
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const char *const attributes[] = {
    "vendor", "device", "class", "subsystem_vendor", "subsystem_device", "numa_node",
    "current_link_speed", "current_link_width", "max_link_speed", "max_link_width",
    "aer_dev_correctable", "aer_dev_fatal",
};

static void read_function(int devices, const char *address)
{
    char buffer[4096];
    int folder = openat(devices, address, O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        int file = openat(folder, attributes[i], O_RDONLY | O_CLOEXEC);
        if (file < 0)
            continue;
        if (read(file, buffer, sizeof buffer) < 0)
            perror(attributes[i]);
        close(file);
    }
    close(folder);
}

static double cpu_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

int main(int count, char **words)
{
    double begun = cpu_ms();
    int devices = count > 1 ? open(words[1], O_RDONLY | O_DIRECTORY) : -1;
    DIR *listing = devices < 0 ? NULL : fdopendir(devices);
    if (listing == NULL) {
        perror(count > 1 ? words[1] : "usage: floor DIRECTORY");
        return 1;
    }
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;)
        if (entry->d_name[0] != '.')
            read_function(devices, entry->d_name);
    closedir(listing);
    printf("%.4f\n", cpu_ms() - begun);
    return 0;
}
